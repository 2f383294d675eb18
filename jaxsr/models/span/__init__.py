"""SPAN: an efficient super-resolution network that can be tiled exactly."""

from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span, merge
from jaxsr.models.span.objective import build_span_objective

__all__ = ["Span", "SpanConfig", "build_span_objective", "merge"]
