"""The Llama and Qwen3 networks in one compact module, under Hugging Face's parameter names.

The caller owns the key-value cache: it goes in as one tensor (B, K, S, D) per layer, is read and
never written, and the entries of the tokens fed now come out beside the logits, for the caller to
put into the slots that follow. So a compiled loop can update its cache in place. Or, with `write`,
a cache with these entries comes out, and attention reads that: fewer operations. Follows
`transformers.models.llama` and `.qwen3`, which the tests compare against. Norms and softmax run in
float32 at least, whatever the dtype of the weights, as there (a float64 network stays float64).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.models.llama.config import LlamaConfig

# B batch, T tokens fed now, S slots of the cache, E hidden features,
# H query heads, K key-value heads, D features per head, V vocabulary


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for a narrower dtype, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Divides by the root of the mean square over the last axis, then scales."""

    sums_last = False
    """Divides before the sum and not after it; see `take_fewer_kernels`."""

    def __init__(self, features: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(wide(x.dtype))
        if self.sums_last:
            count = x.shape[-1]
            size = (y.square() / count + self.eps / count).sum(-1, keepdim=True)
        else:
            size = y.square().mean(-1, keepdim=True) + self.eps
        return self.weight * (y * torch.rsqrt(size)).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the rotary angles, float32, (B, 1, T, D) to broadcast over heads."""

    inv_freq: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)

    def forward(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions_BT[:, None, :, None].to(self.inv_freq.dtype) * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


def inverse_frequencies(config: LlamaConfig) -> Tensor:
    """Angle per position of each of the D/2 pairs; Llama 3.1's scaling as in its published code."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device="cpu").float()
    inverse = 1.0 / config.rope_theta ** (exponent / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    turns = scaling.original_max_position_embeddings * inverse / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * inverse / scaling.factor + blend * inverse


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (i, i + D/2) by its angle."""
    low, high = x_BHTD.chunk(2, -1)
    return x_BHTD * cos + torch.cat((-high, low), -1) * sin


class Places(NamedTuple):
    """Positions of the tokens fed now, and the slots that they may see; equal in every layer."""

    cos: Tensor
    """Cosines of the rotary angles, in the activations' dtype."""
    sin: Tensor
    """Sines of the rotary angles."""
    mask: Tensor
    """Added to the scores, (B or 1, 1, 1, T, S + T): 0 where visible, very low elsewhere; (…, S)
    where entries are written first."""
    visible: Tensor | None
    """The same as booleans, (B or 1, 1, T, S + T); None: tokens see all that come before them."""
    slots: Tensor | None = None
    """Where entries are written before attention reads the cache, (B, 1, T, 1); None: nowhere."""


Cache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each (B, K, S, D)."""


class Attention(nn.Module):
    """Grouped-query attention over the cache; Qwen3 normalises queries and keys per head."""

    compiled = False
    """Whether torch's attention is a call of `jaxsr.interop.cpu_kernels.panel_product`."""
    joins_projections = False
    """One product for queries, keys and values of one token; see `take_fewer_kernels`."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        bias, hidden = config.attention_bias, config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        else:
            self.q_norm = self.k_norm = None

    def forward(
        self, x_BTE: Tensor, places: Places, cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, count, _ = x_BTE.shape
        shape = (batch, count, -1, self.head_dim)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if self.joins_projections and batch * count == 1:
            weight = torch.cat([proj.weight for proj in projections])
            bias = None if self.q_proj.bias is None else torch.cat([p.bias for p in projections])
            sizes = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = F.linear(x_BTE, weight, bias).view(shape).split(sizes, 2)
        else:
            q, k, v = (proj(x_BTE).view(shape) for proj in projections)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q = rotate(q, places.cos, places.sin)
        k = rotate(k, places.cos, places.sin)
        if cache is not None and places.slots is not None:
            k, v = (_written(old, t, places.slots) for old, t in zip(cache, (k, v), strict=True))
            cache = None
        if cache is None and self.compiled:
            mixed = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=places.visible,
                is_causal=places.visible is None,
                enable_gqa=True,
            )
            return self.o_proj(mixed.transpose(1, 2).reshape(batch, count, -1)), k, v
        # One product per key-value head for all of its query heads: nothing is repeated in memory.
        q = q.reshape(batch, self.kv_heads, -1, self.head_dim) * self.head_dim**-0.5
        scores = q @ k.transpose(2, 3)
        if cache is not None:
            scores = torch.cat((q @ cache[0].transpose(2, 3), scores), -1)
        span, stored = scores.shape[-1], scores.shape[-1] - k.shape[2]
        scores = scores.view(batch, self.kv_heads, -1, count, span) + places.mask
        weights = scores.softmax(-1, dtype=wide(x_BTE.dtype)).to(x_BTE.dtype)
        weights = weights.view(batch, self.kv_heads, -1, span)
        mixed = weights[..., stored:] @ v
        if cache is not None:
            mixed = weights[..., :stored] @ cache[1] + mixed
        mixed = mixed.view(batch, self.heads, count, self.head_dim).transpose(1, 2)
        return self.o_proj(mixed.reshape(batch, count, -1)), k, v


def _written(cache_BKSD: Tensor, new_BKTD: Tensor, slots_B1T1: Tensor) -> Tensor:
    return cache_BKSD.scatter(2, slots_B1T1.expand_as(new_BKTD), new_BKTD)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.act_fn = nn.SiLU()

    def forward(self, x_BTE: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x_BTE)) * self.up_proj(x_BTE))


class DecoderLayer(nn.Module):
    """Attention and MLP, each normalised before and added to the stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, x_BTE: Tensor, places: Places, cache: Cache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, k, v = self.self_attn(self.input_layernorm(x_BTE), places, cache)
        x_BTE = x_BTE + mixed
        return x_BTE + self.mlp(self.post_attention_layernorm(x_BTE)), k, v


class Embedding(nn.Embedding):
    """Token embedding, which a tied head uses as well."""

    def reset_parameters(self) -> None:
        # Random numbers without values make torch load its compiler, for seconds.
        if not self.weight.is_meta:
            super().reset_parameters()

    def head(self, x_BTE: Tensor) -> Tensor:
        """Logits of a head that is tied to the embedding."""
        return F.linear(x_BTE, self.weight)


class Decoder(nn.Module):
    """Embedding, blocks and last norm: `model` in Hugging Face's names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)


class CausalLM(nn.Module):
    """A causal language model with its head, tied to the embedding or its own."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if config.tie_word_embeddings:
            self.lm_head = None
        else:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.model.norm.weight.dtype

    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each entry of a cache, (K, D): without its rows and slots."""
        shape = (self.config.num_key_value_heads, self.config.head_dim)
        layers = range(self.config.num_hidden_layers)
        return {f"layers.{i}.{name}": shape for i in layers for name in ("keys", "values")}

    def cache_windows(self) -> dict[str, int]:
        """Entries of a cache that store only a window: there are no such entries."""
        return {}

    def attention_features(self) -> int:
        """Features of a head, in torch's attention."""
        return self.config.head_dim

    def check_verifies(self) -> None:
        """Nothing to try: any number of tokens may follow a cache."""

    def forward(
        self,
        tokens_BT: Tensor,
        cache: Sequence[Cache] | None = None,
        *,
        filled_B: Tensor | None = None,
        first_B: Tensor | None = None,
        read_B: Tensor | None = None,
        write: bool = False,
    ) -> tuple[Tensor, list[Cache]]:
        """Feeds tokens and gives the logits after them.

        Args:
          tokens_BT: token ids; they take the slots from `filled_B` on.
          cache: of the tokens before, one (keys, values) per layer; None where there are none.
          filled_B: slots of each row's cache that are filled. Needed with `cache`.
          first_B: slot of each row's first true token, above 0 where a row is padded on the left.
            That token's position is 0. None means slot 0 everywhere. (B, T), each token's own:
            a row without a cache may hold several texts, which do not see each other.
          read_B: index along T of the one token per row to return logits of, or (B, N) of several;
            None: all.
          write: give each layer's cache with the new entries in their slots.

        Returns:
          Float32 logits, (B, T, V), (B, V) or (B, N, V), and each layer's new (keys, values),
          (B, K, T, D), or (B, K, S, D) with `write`.
        """
        places, x_BTE = self.begin(
            tokens_BT, cache, filled_B=filled_B, first_B=first_B, write=write
        )
        new = []
        for index, layer in enumerate(self.model.layers):
            x_BTE, k, v = layer(x_BTE, places, None if cache is None else cache[index])
            new.append((k, v))
        return self.end(x_BTE, read_B), new

    def begin(
        self,
        tokens_BT: Tensor,
        cache: Sequence[Cache] | None = None,
        *,
        filled_B: Tensor | None = None,
        first_B: Tensor | None = None,
        write: bool = False,
    ) -> tuple[Places, Tensor]:
        """The places of the tokens, and their embeddings (B, T, E): the blocks' inputs."""
        places = self._places(tokens_BT, cache, filled_B, first_B, write=write)
        return places, self.model.embed_tokens(tokens_BT)

    def end(self, x_BTE: Tensor, read_B: Tensor | None = None) -> Tensor:
        """Float32 logits of the last block's outputs; `read_B` as for `forward`."""
        batch, count, _ = x_BTE.shape
        if read_B is not None and read_B.ndim == 2:
            x_BTE = x_BTE[torch.arange(batch, device=read_B.device)[:, None], read_B]
        elif read_B is not None and count > 1:
            x_BTE = x_BTE[torch.arange(batch, device=read_B.device), read_B]
        elif read_B is not None:
            x_BTE = x_BTE[:, 0]
        x_BTE = self.model.norm(x_BTE)
        if self.lm_head is None:
            logits = self.model.embed_tokens.head(x_BTE)
        else:
            logits = self.lm_head(x_BTE)
        return logits.to(wide(logits.dtype))

    def _places(
        self,
        tokens_BT: Tensor,
        cache: Sequence[Cache] | None,
        filled_B: Tensor | None,
        first_B: Tensor | None,
        *,
        write: bool,
    ) -> Places:
        count, device = tokens_BT.shape[1], tokens_BT.device
        dtype = self.model.norm.weight.dtype
        new_T = torch.arange(count, device=device)
        start_B1 = new_T.new_zeros(1, 1) if filled_B is None else filled_B[:, None]
        slots_BT = start_B1 + new_T
        visible = (new_T <= new_T[:, None])[None]
        positions_BT = slots_BT
        if first_B is not None:
            first_BT = first_B[:, None] if first_B.ndim == 1 else first_B
            # A query of the padding sees itself: a softmax over nothing is not a number.
            visible = visible & (
                (slots_BT[:, None] >= first_BT[..., None]) | (new_T == new_T[:, None])
            )
            positions_BT = (slots_BT - first_BT).clamp(min=0)
        if cache is not None:
            slots_S = torch.arange(cache[0][0].shape[2], device=device)
            if write:
                visible = slots_S <= slots_BT[..., None]
                if first_B is not None:
                    visible = visible & (slots_S >= first_B[:, None, None])
            else:
                old_BS = slots_S < start_B1
                if first_B is not None:
                    old_BS = old_BS & (slots_S >= first_B[:, None])
                rows = max(old_BS.shape[0], visible.shape[0])
                old = old_BS[:, None].expand(rows, count, -1)
                visible = torch.cat((old, visible.expand(rows, -1, -1)), -1)
        mask = torch.zeros(visible.shape, dtype=dtype, device=device)
        mask = mask.masked_fill(~visible, torch.finfo(dtype).min)[:, None, None]
        cos, sin = (t.to(dtype) for t in self.model.rotary_emb(positions_BT))
        visible = None if cache is None and first_B is None else visible[:, None]
        return Places(cos, sin, mask, visible, slots_BT[:, None, :, None].long() if write else None)


def take_fewer_kernels(network: nn.Module, *, join: bool) -> None:
    """Gives the modules forms for which XLA's GPU compiler makes fewer kernels of one token.

    A norm: a sum that meets constants before it meets its row again takes a kernel of its own.
    Projections: XLA itself joins those of several rows only.

    Args:
      network: changed in place.
      join: also the projections, unless their weights are split over devices.
    """
    for module in network.modules():
        if isinstance(module, RMSNorm):
            module.sums_last = True
        elif isinstance(module, Attention):
            projections = (module.q_proj, module.k_proj, module.v_proj)
            module.joins_projections = join and all(type(p) is nn.Linear for p in projections)
