"""SPAN: an efficient super-resolution network that can be tiled exactly."""

from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import Span, merge

__all__ = ["Span", "SpanConfig", "merge"]
