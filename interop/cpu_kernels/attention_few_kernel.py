"""Attention of few queries, as of a decode step, as text of LLVM's language, for `panel_kernels`.

A task is one query of all heads that share keys. Each key is multiplied with each of these heads'
queries in vectors of features: keys and values are read once, as they are stored.
`attention_kernel` would compute many queries that are not there.
"""

from jaxsr.interop.cpu_kernels.attention_kernel import LOWEST, NONE, divided_features, visible_keys
from jaxsr.interop.cpu_kernels.panel_tasks import fetch, splat

# M queries of each head, I features, O keys, H heads, G of them to each of keys, W features at once


def attention_few_body(width: int) -> str:
    """@body_attention_few(job, task, worker), with its steps."""
    return "\n".join([_scores(width), _softmax_row(width), _body(width)])


def _scores(width: int) -> str:
    """@scores(q, k, m, s, keys, G, I): of G queries and so many keys; -inf where `m` shows none."""
    v = f"<{width} x float>"
    return f"""
declare float @llvm.vector.reduce.fadd.v{width}f32(float, {v})
declare float @llvm.vector.reduce.fmax.v{width}f32({v})
declare {v} @llvm.masked.load.v{width}f32.p0(ptr, i32, <{width} x i1>, {v})
declare void @llvm.masked.store.v{width}f32.p0({v}, ptr, i32, <{width} x i1>)
define internal void @scores(
  ptr noalias %q, ptr noalias %k, ptr noalias %m, ptr noalias %s, i64 %keys, i64 %G, i64 %I) #0 {{
entry:
  br label %key
key:
  %n = phi i64 [0, %entry], [%n.next, %key.end]
  %mp = getelementptr i8, ptr %m, i64 %n
  %seen = load i8, ptr %mp
  %sees = icmp ne i8 %seen, 0
  %ko = mul i64 %n, %I
  %kp = getelementptr float, ptr %k, i64 %ko
  %sp = getelementptr float, ptr %s, i64 %n
  br label %head
head:
  %g = phi i64 [0, %key], [%g.next, %head.end]
  %qo = mul i64 %g, %I
  %qp = getelementptr float, ptr %q, i64 %qo
  br label %features
features:
  %d = phi i64 [0, %head], [%d.next, %features]
  %sum = phi {v} [zeroinitializer, %head], [%sum.next, %features]
  %qd = getelementptr float, ptr %qp, i64 %d
  %kd = getelementptr float, ptr %kp, i64 %d
  %a = load {v}, ptr %qd, align 4
  %b = load {v}, ptr %kd, align 4
  %sum.next = call {v} @llvm.fma.v{width}f32({v} %a, {v} %b, {v} %sum)
  %d.next = add i64 %d, {width}
  %more = icmp ult i64 %d.next, %I
  br i1 %more, label %features, label %head.end
head.end:
  %dot = call reassoc float @llvm.vector.reduce.fadd.v{width}f32(float 0.0, {v} %sum.next)
  %shown = select i1 %sees, float %dot, float {NONE}
  %so = mul i64 %g, %keys
  %sg = getelementptr float, ptr %sp, i64 %so
  store float %shown, ptr %sg
  %g.next = add i64 %g, 1
  %again = icmp ult i64 %g.next, %G
  br i1 %again, label %head, label %key.end
key.end:
  %n.next = add i64 %n, 1
  %left = icmp ult i64 %n.next, %keys
  br i1 %left, label %key, label %end
end:
  ret void
}}"""


def _softmax_row(width: int) -> str:
    """@softmax_row(s, keys, z, zs): exponentials in place of a query's scores; gives the inverse
    sum, 1 where it is 0.

    The largest score and, `zs` floats later, the sum go to z.
    """
    v, bits = f"<{width} x float>", f"<{width} x i1>"
    places = ", ".join(f"i32 {place}" for place in range(width))

    def loaded(name: str, at: str) -> str:
        """A part of the row; -inf beyond its end."""
        return f"""  %{name}.left64 = sub i64 %keys, {at}
  %{name}.left = trunc i64 %{name}.left64 to i32
{splat(f"%{name}.left", f"{name}.lefts", "i32", width)}  %{name}.in = icmp slt <{width} x i32> \
<{places}>, %{name}.lefts
  %{name}.p = getelementptr float, ptr %s, i64 {at}
  %{name} = call {v} @llvm.masked.load.v{width}f32.p0(
    ptr %{name}.p, i32 4, {bits} %{name}.in, {v} %none)
"""

    return f"""
define internal float @softmax_row(ptr noalias %s, i64 %keys, ptr noalias %z, i64 %zs) #0 {{
entry:
{splat(LOWEST, "lowest", "float", width)}{splat(NONE, "none", "float", width)}  br label %largest
largest:
  %k = phi i64 [0, %entry], [%k.next, %largest]
  %peaks = phi {v} [%lowest, %entry], [%peaks.next, %largest]
{loaded("score", "%k")}  %larger = fcmp ogt {v} %score, %peaks
  %peaks.next = select {bits} %larger, {v} %score, {v} %peaks
  %k.next = add i64 %k, {width}
  %more = icmp ult i64 %k.next, %keys
  br i1 %more, label %largest, label %found
found:
  %peak = call float @llvm.vector.reduce.fmax.v{width}f32({v} %peaks.next)
{splat("%peak", "subtracted", "float", width)}  br label %sum
sum:
  %j = phi i64 [0, %found], [%j.next, %sum]
  %totals = phi {v} [zeroinitializer, %found], [%totals.next, %sum]
{loaded("stored", "%j")}  %less = fsub {v} %stored, %subtracted
  %weight = call {v} @exponential({v} %less)
  call void @llvm.masked.store.v{width}f32.p0({v} %weight, ptr %stored.p, i32 4, {bits} %stored.in)
  %totals.next = fadd {v} %totals, %weight
  %j.next = add i64 %j, {width}
  %again = icmp ult i64 %j.next, %keys
  br i1 %again, label %sum, label %end
end:
  %total = call reassoc float @llvm.vector.reduce.fadd.v{width}f32(float 0.0, {v} %totals.next)
  store float %peak, ptr %z
  %zp = getelementptr float, ptr %z, i64 %zs
  store float %total, ptr %zp
  %empty = fcmp oeq float %total, 0.0
  %divisor = select i1 %empty, float 1.0, float %total
  %inverse = fdiv float 1.0, %divisor
  ret float %inverse
}}"""


def _body(width: int) -> str:
    def seen(name: str, key: str) -> str:
        return f"""  %{name}.p = getelementptr i8, ptr %mp, i64 {key}
  %{name}.v = load i8, ptr %{name}.p
  %{name} = icmp ne i8 %{name}.v, 0
"""

    return f"""
define internal void @body_attention_few(ptr %job, i64 %task, i64 %worker) #0 {{
entry:
{fetch("x", "w", "t", "v", "y", "z", "s", "M", "I", "O", "G", "H", "B")}
  %kv = udiv i64 %task, %M
  %query = urem i64 %task, %M
  %K = udiv i64 %H, %G
  %b = udiv i64 %kv, %K
  %group = urem i64 %kv, %K
  %h = mul i64 %group, %G
  %row0 = mul i64 %b, %M
  %row1 = add i64 %row0, %query
  %row2 = mul i64 %row1, %H
  %row = add i64 %row2, %h
  %xo = mul i64 %row, %I
  %xp = getelementptr float, ptr %x, i64 %xo
  %yp = getelementptr float, ptr %y, i64 %xo
  %size = mul i64 %O, %I
  %ko = mul i64 %kv, %size
  %kp0 = getelementptr float, ptr %w, i64 %ko
  %vp0 = getelementptr float, ptr %t, i64 %ko
  %mo0 = mul i64 %b, %B
  %mo1 = mul i64 %query, %O
  %mo = add i64 %mo0, %mo1
  %mp = getelementptr i8, ptr %v, i64 %mo
  %row.size = add i64 %O, 1
  %most = mul i64 %G, %row.size
  %so = mul i64 %most, %worker
  %scores = getelementptr float, ptr %s, i64 %so
  %head0 = mul i64 %b, %H
  %zh = add i64 %head0, %h
  %zr = mul i64 %zh, 2
  %zm = mul i64 %zr, %M
  %zo = add i64 %zm, %query
  %zp = getelementptr float, ptr %z, i64 %zo
  %each = mul i64 %M, 2
{visible_keys(seen)}  %seen = getelementptr i8, ptr %mp, i64 %lo
  call void @scores(ptr %xp, ptr %kp, ptr %seen, ptr %scores, i64 %keys, i64 %G, i64 %I)
  %used = mul i64 %G, %keys
  %inverses = getelementptr float, ptr %scores, i64 %used
  br label %head
head:
  %g = phi i64 [0, %known], [%g.next, %head]
  %ro = mul i64 %g, %keys
  %rp = getelementptr float, ptr %scores, i64 %ro
  %zgo = mul i64 %g, %each
  %zg = getelementptr float, ptr %zp, i64 %zgo
  %inverse = call float @softmax_row(ptr %rp, i64 %keys, ptr %zg, i64 %M)
  %ip = getelementptr float, ptr %inverses, i64 %g
  store float %inverse, ptr %ip
  %g.next = add i64 %g, 1
  %more = icmp ult i64 %g.next, %G
  br i1 %more, label %head, label %features
features:
  %d = phi i64 [0, %head], [%d.next, %features.end]
  %vd = getelementptr float, ptr %vp, i64 %d
  %yd = getelementptr float, ptr %yp, i64 %d
  call void @multiply(ptr %scores, ptr %vd, ptr %yd, i64 %G, i64 %keys, i64 %I, i64 %I, i64 0)
  br label %divide
{divided_features("features", "%G", "%inverses", "%yp", "%I", width)}}}"""
