"""Attention of many queries as text of LLVM's language, for `panel_kernels`.

A task is as many queries of one head as a vector has places. They are its columns: the scores lie
as (keys, queries), so that every step of softmax is one of whole vectors, and keys and values are
read as they are stored. Keys before the first and after the last that one of the queries sees are
left out: of a text without padding half of them.
"""

import struct
from collections.abc import Callable

from jaxsr.interop.cpu_kernels.panel_tasks import fetch, over_rows, splat

# M queries of each head, I features, O keys, H heads, G of them to each of keys, W queries at once

COLUMNS = 32
"""Queries of which arrays hold a multiple: as many as the widest vectors take."""
LOWEST = "0xC7EFFFFFE0000000"  # the least float
NONE = "0xFFF0000000000000"  # -inf


def attention_body(width: int, rows: int) -> str:
    """@body_attention(job, task, worker), with its steps: results of so many queries at once."""
    return "\n".join([_exponential(width), _queries(width), _softmax(width), _body(width, rows)])


def _exponential(width: int) -> str:
    """@exponential(x) of numbers up to 0, by Cephes' polynomial; 0 below 2**-126."""
    v, vi = f"<{width} x float>", f"<{width} x i32>"
    constants = {
        "least": -88.0, "log2e": 1.44269504088896341, "magic": 12582912.0, "high": -0.693359375,
        "low": 2.12194440e-4, "one": 1.0, "p0": 1.9875691500e-4, "p1": 1.3981999507e-3,
        "p2": 8.3334519073e-3, "p3": 4.1665795894e-2, "p4": 1.6666665459e-1, "p5": 5.0000001201e-1,
    }  # fmt: skip
    text = "".join(splat(_float(value), name, "float", width) for name, value in constants.items())
    text += splat("23", "bits", "i32", width) + splat("1065353216", "exponent", "i32", width)

    def fma(out: str, a: str, b: str, c: str) -> str:
        return f"  %{out} = call {v} @llvm.fma.v{width}f32({v} {a}, {v} {b}, {v} {c})\n"

    text += f"""  %below = fcmp olt {v} %x, %least
  %c = select <{width} x i1> %below, {v} %least, {v} %x
"""
    # The sum's lowest bits are the whole number of powers of two.
    text += fma("t", "%c", "%log2e", "%magic") + f"  %n = fsub {v} %t, %magic\n"
    text += fma("r0", "%n", "%high", "%c") + fma("r", "%n", "%low", "%r0")
    text += fma("q1", "%p0", "%r", "%p1")
    text += "".join(fma(f"q{i}", f"%q{i - 1}", "%r", f"%p{i}") for i in range(2, 6))
    text += f"  %r2 = fmul {v} %r, %r\n" + fma("q6", "%q5", "%r2", "%r")
    return f"""
define internal {v} @exponential({v} %x) alwaysinline #0 {{
{text}  %y = fadd {v} %q6, %one
  %integer = bitcast {v} %t to {vi}
  %shifted = shl {vi} %integer, %bits
  %biased = add {vi} %shifted, %exponent
  %power = bitcast {vi} %biased to {v}
  %result = fmul {v} %y, %power
  ret {v} %result
}}"""


def _float(value: float) -> str:
    """A float32 constant, which LLVM's language has in double precision's digits."""
    (single,) = struct.unpack("f", struct.pack("f", value))
    return f"0x{struct.unpack('Q', struct.pack('d', single))[0]:016X}"


def _queries(width: int) -> str:
    """@queries(x, y, n, I, step): n queries, `step` floats apart, as columns; the last one again
    in those that are left.
    """
    return f"""
define internal void @queries(
  ptr noalias %x, ptr noalias %y, i64 %n, i64 %I, i64 %step) #0 {{
entry:
  %last = sub i64 %n, 1
  br label %column
column:
  %c = phi i64 [0, %entry], [%c.next, %column.end]
  %beyond = icmp ugt i64 %c, %last
  %from = select i1 %beyond, i64 %last, i64 %c
  %xo = mul i64 %from, %step
  %xc = getelementptr float, ptr %x, i64 %xo
  %yc = getelementptr float, ptr %y, i64 %c
  br label %loop
loop:
  %k = phi i64 [0, %column], [%k.next, %loop]
  %xp = getelementptr float, ptr %xc, i64 %k
  %value = load float, ptr %xp
  %yo = mul i64 %k, {width}
  %yp = getelementptr float, ptr %yc, i64 %yo
  store float %value, ptr %yp
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %I
  br i1 %more, label %loop, label %column.end
column.end:
  %c.next = add i64 %c, 1
  %again = icmp ult i64 %c.next, {width}
  br i1 %again, label %column, label %end
end:
  ret void
}}"""


def _softmax(width: int) -> str:
    """@softmax(s, m, keys, ld, z, zs, inverse): exponentials in place of scores that `m` shows.

    The largest scores and, `zs` floats later, the sums go to z; the inverse sums, 0 for none, to
    `inverse`.
    """
    v, bits = f"<{width} x float>", f"<{width} x i1>"
    return f"""
define internal void @softmax(
  ptr noalias %s, ptr noalias %m, i64 %keys, i64 %ld, ptr noalias %z, i64 %zs, ptr noalias %inverse
) #0 {{
entry:
{splat(LOWEST, "lowest", "float", width)}{splat(NONE, "none", "float", width)}\
{splat("1.0", "one", "float", width)}  br label %largest
largest:
  %k = phi i64 [0, %entry], [%k.next, %largest]
  %peak = phi {v} [%lowest, %entry], [%peak.next, %largest]
  %so = mul i64 %k, {width}
  %sp = getelementptr float, ptr %s, i64 %so
  %score = load {v}, ptr %sp, align 4
  %mo = mul i64 %k, %ld
  %mp = getelementptr i8, ptr %m, i64 %mo
  %seen = load <{width} x i8>, ptr %mp, align 1
  %sees = icmp ne <{width} x i8> %seen, zeroinitializer
  %shown = select {bits} %sees, {v} %score, {v} %none
  store {v} %shown, ptr %sp, align 4
  %larger = fcmp ogt {v} %shown, %peak
  %peak.next = select {bits} %larger, {v} %shown, {v} %peak
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %keys
  br i1 %more, label %largest, label %sum
sum:
  %j = phi i64 [0, %largest], [%j.next, %sum]
  %total = phi {v} [zeroinitializer, %largest], [%total.next, %sum]
  %eo = mul i64 %j, {width}
  %ep = getelementptr float, ptr %s, i64 %eo
  %stored = load {v}, ptr %ep, align 4
  %less = fsub {v} %stored, %peak.next
  %weight = call {v} @exponential({v} %less)
  store {v} %weight, ptr %ep, align 4
  %total.next = fadd {v} %total, %weight
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, %keys
  br i1 %again, label %sum, label %end
end:
  store {v} %peak.next, ptr %z, align 4
  %zp = getelementptr float, ptr %z, i64 %zs
  store {v} %total.next, ptr %zp, align 4
  %empty = fcmp oeq {v} %total.next, zeroinitializer
  %divisor = select {bits} %empty, {v} %one, {v} %total.next
  %inverses = fdiv {v} %one, %divisor
  store {v} %inverses, ptr %inverse, align 4
  ret void
}}"""


def visible_keys(seen: Callable[[str, str], str]) -> str:
    """The keys from the first to the last visible one, at least one: from %lo on, %keys of %O.

    Args:
      seen: its first argument's name for whether the key, its second argument, is visible.
    """
    return f"""  br label %down
down:
  %hi = phi i64 [%O, %entry], [%hi.next, %down.on]
  %hi.next = sub i64 %hi, 1
  %ends = icmp ule i64 %hi, 1
  br i1 %ends, label %up, label %down.on
down.on:
{seen("last_seen", "%hi.next")}  br i1 %last_seen, label %up, label %down
up:
  %lo = phi i64 [0, %down], [0, %down.on], [%lo.next, %up.on]
  %lo.next = add i64 %lo, 1
  %begins = icmp uge i64 %lo.next, %hi
  br i1 %begins, label %known, label %up.on
up.on:
{seen("first_seen", "%lo")}  br i1 %first_seen, label %known, label %up
known:
  %keys = sub i64 %hi, %lo
  %skipped = mul i64 %lo, %I
  %kp = getelementptr float, ptr %kp0, i64 %skipped
  %vp = getelementptr float, ptr %vp0, i64 %skipped
"""


def divided_features(
    before: str, count: str, inverses: str, out: str, stride: str, width: int
) -> str:
    """The rows' next features times the inverses of the rows' sums, and the end of %features.

    Args:
      before: the block that goes on here.
      count: of the rows.
      inverses: one float a row.
      out: the rows' features, `width` of them from %d on.
      stride: floats from a row to the next.
      width: floats in a vector.
    """
    v = f"<{width} x float>"
    return f"""divide:
  %r = phi i64 [0, %{before}], [%r.next, %divide]
  %factor.p = getelementptr float, ptr {inverses}, i64 %r
  %factor = load float, ptr %factor.p
{splat("%factor", "factors", "float", width)}  %row.o = mul i64 %r, {stride}
  %row.p = getelementptr float, ptr {out}, i64 %row.o
  %summed.p = getelementptr float, ptr %row.p, i64 %d
  %summed = load {v}, ptr %summed.p, align 4
  %divided = fmul {v} %summed, %factors
  store {v} %divided, ptr %summed.p, align 4
  %r.next = add i64 %r, 1
  %again = icmp ult i64 %r.next, {count}
  br i1 %again, label %divide, label %features.end
features.end:
  %d.next = add i64 %d, {width}
  %wider = icmp ult i64 %d.next, %I
  br i1 %wider, label %features, label %end
end:
  ret void
"""


def _body(width: int, rows: int) -> str:
    v, bytes_ = f"<{width} x float>", f"<{width} x i8>"
    call = (
        f"  call void @columns_{{rows}}_{width}(ptr %xm, ptr %vd, ptr %yd, i64 %keys, i64 %step, "
        "i64 %I, i64 0)\n"
    )

    def seen(name: str, key: str) -> str:
        """Whether one of the queries sees a key."""
        return f"""  %{name}.o = mul i64 {key}, %ld
  %{name}.p = getelementptr i8, ptr %mp, i64 %{name}.o
  %{name}.v = load {bytes_}, ptr %{name}.p, align 1
  %{name}.any = call i8 @llvm.vector.reduce.or.v{width}i8({bytes_} %{name}.v)
  %{name} = icmp ne i8 %{name}.any, 0
"""

    return f"""
declare i8 @llvm.vector.reduce.or.v{width}i8({bytes_})
define internal void @body_attention(ptr %job, i64 %task, i64 %worker) #0 {{
entry:
  %inverse = alloca {v}, align 64
{fetch("x", "w", "t", "v", "y", "z", "s", "M", "I", "O", "G", "H", "B")}
  %rounded = add i64 %M, {width - 1}
  %parts = udiv i64 %rounded, {width}
  %whole = add i64 %M, {COLUMNS - 1}
  %vectors = udiv i64 %whole, {COLUMNS}
  %ld = mul i64 %vectors, {COLUMNS}
  %head = udiv i64 %task, %parts
  %back = urem i64 %task, %parts
  %behind = add i64 %back, 1
  %part = sub i64 %parts, %behind
  %b = udiv i64 %head, %H
  %h = urem i64 %head, %H
  %first = mul i64 %part, {width}
  %left = sub i64 %M, %first
  %is_last = icmp ult i64 %left, {width}
  %n = select i1 %is_last, i64 %left, i64 {width}
  %step = mul i64 %H, %I
  %row0 = mul i64 %b, %M
  %row = add i64 %row0, %first
  %xr = mul i64 %row, %step
  %xh = mul i64 %h, %I
  %xo = add i64 %xr, %xh
  %xp = getelementptr float, ptr %x, i64 %xo
  %yp = getelementptr float, ptr %y, i64 %xo
  %kv = udiv i64 %head, %G
  %size = mul i64 %O, %I
  %ko = mul i64 %kv, %size
  %kp0 = getelementptr float, ptr %w, i64 %ko
  %vp0 = getelementptr float, ptr %t, i64 %ko
  %mo0 = mul i64 %b, %B
  %mo = add i64 %mo0, %first
  %mp = getelementptr i8, ptr %v, i64 %mo
  %zo0 = mul i64 %head, 2
  %zo1 = mul i64 %zo0, %ld
  %zo = add i64 %zo1, %first
  %zp = getelementptr float, ptr %z, i64 %zo
  %both = add i64 %I, %O
  %so0 = mul i64 %both, %worker
  %so = mul i64 %so0, {width}
  %turned = getelementptr float, ptr %s, i64 %so
  %qo = mul i64 %I, {width}
  %scores = getelementptr float, ptr %turned, i64 %qo
{visible_keys(seen)}  %unseen = mul i64 %lo, %ld
  %seen = getelementptr i8, ptr %mp, i64 %unseen
  call void @queries(ptr %xp, ptr %turned, i64 %n, i64 %I, i64 %step)
  call void @multiply(ptr %kp, ptr %turned, ptr %scores, i64 %keys, i64 %I, i64 {width},
                      i64 {width}, i64 0)
  call void @softmax(ptr %scores, ptr %seen, i64 %keys, i64 %ld, ptr %zp, i64 %ld, ptr %inverse)
  br label %features
features:
  %d = phi i64 [0, %known], [%d.next, %features.end]
  %vd = getelementptr float, ptr %vp, i64 %d
  br label %loop
loop:
  %m = phi i64 [0, %features], [%m.next, %row.next]
  %xm = getelementptr float, ptr %scores, i64 %m
  %yo = mul i64 %m, %step
  %ym = getelementptr float, ptr %yp, i64 %yo
  %yd = getelementptr float, ptr %ym, i64 %d
{over_rows("row", rows, call, count="%n")}
  %m.next = add i64 %m, {rows}
  %more = icmp ult i64 %m.next, %n
  br i1 %more, label %loop, label %divide
{divided_features("row.next", "%n", "%inverse", "%yp", "%step", width)}}}"""
