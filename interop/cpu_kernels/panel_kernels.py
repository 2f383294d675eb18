"""The kernels of `panel_product` as text of LLVM's language; `panel_tasks` shares them out."""

from jaxsr.interop.cpu_kernels.attention_few_kernel import attention_few_body
from jaxsr.interop.cpu_kernels.attention_kernel import attention_body
from jaxsr.interop.cpu_kernels.panel_tasks import (
    FEW,
    NAMES,
    PANEL,
    fetch,
    handler,
    over_rows,
    splat,
)

# M tokens, I inputs, O outputs, P panels, G groups; R rows at a time, W outputs at a time


def kernels(*, wide: bool, threads: int, schedule_word: int) -> str:
    """The text of one module of LLVM with a function for each of `NAMES`.

    Args:
      wide: whether the processor has AVX-512.
      threads: of a call.
      schedule_word: where XLA's table of functions has `XLA_FFI_ThreadPool_Schedule`.
    """
    # Sums of `rows` tokens and `width` outputs stay in registers. A few tokens take all of a panel
    # at a time: each read then lies in one piece.
    rows, few_rows, width = (12, 8, 32) if wide else (5, 5, 16)
    panel = [_rows(r, width) for r in range(1, rows + 1)]
    panel += [_rows(r, PANEL) for r in range(1, FEW + 1)]
    panel += [_rows(r, width, name="columns", step=width) for r in range(1, few_rows + 1)]
    direct = [_levels(bits, r, PANEL) for bits in (4, 8) for r in range(1, FEW + 1)]
    unpack = [_levels(bits, 0, width) for bits in (4, 8)]
    bodies = [_float_body(rows, width, threads)]
    bodies += [attention_body(width, few_rows), attention_few_body(width)]
    bodies += [_packed_body(bits, width) for bits in (4, 8)]
    handlers = [handler(kind, threads, width, schedule_word) for kind in NAMES]
    attributes = (
        'attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }'
    )
    return "\n".join([_HEAD, *panel, *direct, *unpack, *bodies, *handlers, attributes])


_HEAD = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.x86.sse2.pause()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""


def _fma(out: str, a: str, b: str, c: str, width: int) -> str:
    v = f"<{width} x float>"
    return f"  %{out} = call {v} @llvm.fma.v{width}f32({v} {a}, {v} {b}, {v} {c})\n"


def _prefetch(name: str, place: str, ahead: str, width: int, *, cache: int) -> str:
    """Asks for the `width` floats so many bytes after a place, to come into this level's cache."""
    return f"  %{name}.at = getelementptr i8, ptr {place}, i64 {ahead}\n" + "".join(
        f"  %{name}{n} = getelementptr i8, ptr %{name}.at, i64 {64 * n}\n"
        f"  call void @llvm.prefetch.p0(ptr %{name}{n}, i32 0, i32 {4 - cache}, i32 1)\n"
        for n in range(max(1, width * 4 // 64))
    )


_SOON = 4
"""Inputs after which many tokens read a part of a panel's line. Unasked for, it would come from the
second cache too late: a sixth more time."""
_PAGE = 4096
"""Bytes after which one or two tokens read. By itself the processor looks no further than to a
page's end: a sixth more time."""


def _rows(rows: int, width: int, *, name: str = "rows", step: int | None = None) -> str:
    """`rows` tokens by `width` outputs of a float panel: @rows_R_W(x, w, y, I, O, ld, ahead).

    Args:
      rows: tokens.
      width: outputs.
      name: of the function.
      step: floats of x between inputs, whose tokens lie side by side. None: x has a token's inputs
        side by side.

    `ld` floats lie between inputs. The input of the thread's next task is so many bytes `ahead` of
    this one's. A task reads a part of each of a panel's lines, which the processor does not
    foresee.
    """
    v = f"<{width} x float>"
    if width == PANEL:
        fetched = _prefetch("ahead", "%wp", str(_PAGE), width, cache=2)
    else:
        fetched = _prefetch("soon", "%wp", "%soon", width, cache=1)
        if step is None:
            fetched += _prefetch("ahead", "%wp", "%ahead", width, cache=2)
    every = range(rows)
    phis = "".join(f"  %a{r} = phi {v} [zeroinitializer, %entry], [%b{r}, %loop]\n" for r in every)
    first, each = ("%k", "%i{}") if step is None else ("%ks", "{}")
    steps = "" if step is None else f"  %ks = mul i64 %k, {step}\n"
    steps += "".join(
        f"  %o{r} = add i64 {first}, {each.format(r)}\n"
        f"  %p{r} = getelementptr float, ptr %x, i64 %o{r}\n"
        f"  %e{r} = load float, ptr %p{r}\n"
        + splat(f"%e{r}", f"s{r}", "float", width)
        + _fma(f"b{r}", "%weight", f"%s{r}", f"%a{r}", width)
        for r in every
    )
    ends = "".join(
        f"  %j{r} = mul i64 %O, {r}\n  %q{r} = getelementptr float, ptr %y, i64 %j{r}\n"
        f"  store {v} %b{r}, ptr %q{r}, align 4\n"
        for r in every
    )
    return f"""
define internal void @{name}_{rows}_{width}(
  ptr noalias %x, ptr noalias %w, ptr noalias %y, i64 %I, i64 %O, i64 %ld, i64 %ahead) #0 {{
entry:
{"".join(f"  %i{r} = mul i64 %I, {r}{chr(10)}" for r in every)}  %soon = mul i64 %ld, {4 * _SOON}
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k.next, %loop]
{phis}  %at = mul i64 %k, %ld
  %wp = getelementptr float, ptr %w, i64 %at
{fetched}  %weight = load {v}, ptr %wp, align 4
{steps}  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %I
  br i1 %more, label %loop, label %end
end:
{ends}  ret void
}}"""


def _levels(bits: int, rows: int, width: int) -> str:
    """A panel of levels by `rows` tokens, @levels_B_R(x, w, t, y, I, O, words).

    Unpacked into y for 0 rows.
    """
    v, vi = f"<{width} x float>", f"<{width} x i32>"
    every, count = range(rows), 32 // bits
    text = f"""
define internal void @levels_{bits}_{rows}(
  ptr noalias %x, ptr noalias %w, ptr noalias %t, ptr noalias %y, i64 %I, i64 %O, i64 %words) #0 {{
entry:
  br label %group
group:
  %g = phi i64 [0, %entry], [%g.next, %group.end]
"""
    text += "".join(
        f"  %a{r} = phi {v} [zeroinitializer, %entry], [%b{r}, %group.end]\n" for r in every
    )
    text += f"""  %first = mul i64 %g, %words
  %g2 = mul i64 %g, {2 * PANEL}
  %sp = getelementptr float, ptr %t, i64 %g2
  %zp = getelementptr float, ptr %sp, i64 {PANEL}
  %scale = load {v}, ptr %sp, align 4
  %zero = load {v}, ptr %zp, align 4
  br label %word
word:
  %n = phi i64 [0, %group], [%n.next, %word]
"""
    for r in every:
        text += f"  %c{r} = phi {v} [zeroinitializer, %group], [%d{r}.{count - 1}, %word]\n"
        text += f"  %u{r} = phi float [0.0, %group], [%m{r}.{count - 1}, %word]\n"
    text += f"""  %at = add i64 %first, %n
  %wo = mul i64 %at, {PANEL}
  %wp = getelementptr i32, ptr %w, i64 %wo
  %packed = load {vi}, ptr %wp, align 4
  %k0 = mul i64 %at, {count}
"""
    for j in range(count):
        shift = bits * j if bits == 4 else 32 - bits * (j + 1)
        text += splat(str(shift), f"sh{j}", "i32", width)
        if bits == 4:
            text += f"  %r{j} = lshr {vi} %packed, %sh{j}\n"
            text += splat("15", f"low{j}", "i32", width) + f"  %l{j} = and {vi} %r{j}, %low{j}\n"
        else:
            text += f"  %r{j} = shl {vi} %packed, %sh{j}\n" + splat("24", f"low{j}", "i32", width)
            text += f"  %l{j} = ashr {vi} %r{j}, %low{j}\n"
        text += f"  %f{j} = sitofp {vi} %l{j} to {v}\n  %k.{j} = add i64 %k0, {j}\n"
        if not rows:
            text += _fma(f"v{j}", f"%f{j}", "%scale", "%zero", width)
            text += f"  %yo{j} = mul i64 %k.{j}, {PANEL}\n"
            text += f"  %yp{j} = getelementptr float, ptr %y, i64 %yo{j}\n"
            text += f"  store {v} %v{j}, ptr %yp{j}, align 4\n"
        for r in every:
            before, sum_before = (f"%d{r}.{j - 1}", f"%m{r}.{j - 1}") if j else (f"%c{r}", f"%u{r}")
            text += f"  %o{r}.{j}.0 = mul i64 %I, {r}\n  %o{r}.{j} = add i64 %o{r}.{j}.0, %k.{j}\n"
            text += f"  %p{r}.{j} = getelementptr float, ptr %x, i64 %o{r}.{j}\n"
            text += f"  %e{r}.{j} = load float, ptr %p{r}.{j}\n"
            text += splat(f"%e{r}.{j}", f"s{r}.{j}", "float", width)
            text += _fma(f"d{r}.{j}", f"%f{j}", f"%s{r}.{j}", before, width)
            text += f"  %m{r}.{j} = fadd float {sum_before}, %e{r}.{j}\n"
    text += """  %n.next = add i64 %n, 1
  %more = icmp ult i64 %n.next, %words
  br i1 %more, label %word, label %group.end
group.end:
"""
    for r in every:
        last = count - 1
        text += _fma(f"h{r}", f"%d{r}.{last}", "%scale", f"%a{r}", width)
        text += splat(f"%m{r}.{last}", f"z{r}", "float", width)
        text += _fma(f"b{r}", f"%z{r}", "%zero", f"%h{r}", width)
    text += f"""  %g.next = add i64 %g, 1
  %reached = mul i64 %g.next, %words
  %k.end = mul i64 %reached, {count}
  %again = icmp ult i64 %k.end, %I
  br i1 %again, label %group, label %end
end:
"""
    for r in every:
        text += f"  %j{r} = mul i64 %O, {r}\n  %q{r} = getelementptr float, ptr %y, i64 %j{r}\n"
        text += f"  store {v} %b{r}, ptr %q{r}, align 4\n"
    return text + "  ret void\n}"


def _place(width: int) -> str:
    """The first output of a task, its panel, and its column there."""
    return f"""  %few = icmp ule i64 %M, {FEW}
  %width = select i1 %few, i64 {PANEL}, i64 {width}
  %o = mul i64 %task, %width
  %p = udiv i64 %o, {PANEL}
  %c = urem i64 %o, {PANEL}
  %yp = getelementptr float, ptr %y, i64 %o
"""


def _float_body(rows: int, width: int, threads: int) -> str:
    """@body_float(job, task, worker), and @multiply: `width` columns of a panel by all tokens."""
    sizes = "i64 %I, i64 %O, i64 %ld, i64 %next"
    call = f"  call void @rows_{{rows}}_{width}(ptr %xm, ptr %w, ptr %ym, {sizes})\n"
    few = "".join(
        f"row.{r}:\n  call void @rows_{r}_{PANEL}"
        f"(ptr %x, ptr %wp, ptr %yp, i64 %I, i64 %O, i64 {PANEL}, i64 0)\n"
        "  ret void\n"
        for r in range(1, FEW + 1)
    )
    return f"""
define internal void @multiply(
  ptr %x, ptr %w, ptr %y, i64 %M, i64 %I, i64 %O, i64 %ld, i64 %ahead) #0 {{
entry:
  br label %loop
loop:
  %m = phi i64 [0, %entry], [%m.next, %row.next]
  %xo = mul i64 %m, %I
  %xm = getelementptr float, ptr %x, i64 %xo
  %yo = mul i64 %m, %O
  %ym = getelementptr float, ptr %y, i64 %yo
  %first = icmp eq i64 %m, 0
  %next = select i1 %first, i64 %ahead, i64 0
{over_rows("row", rows, call)}
  %m.next = add i64 %m, {rows}
  %more = icmp ult i64 %m.next, %M
  br i1 %more, label %loop, label %end
end:
  ret void
}}
define internal void @body_float(ptr %job, i64 %task, i64 %worker) #0 {{
entry:
{fetch("x", "w", "t", "v", "y", "M", "I", "O", "G", "H")}
{_place(width)}
  %in_first = icmp ult i64 %p, %G
  %in_second = icmp ult i64 %p, %H
  %other = select i1 %in_second, ptr %t, ptr %v
  %matrix = select i1 %in_first, ptr %w, ptr %other
  %others = select i1 %in_second, i64 %G, i64 %H
  %skipped = select i1 %in_first, i64 0, i64 %others
  %panel = sub i64 %p, %skipped
  %before = mul i64 %panel, {PANEL}
  %size = mul i64 %before, %I
  %at = add i64 %size, %c
  %wp = getelementptr float, ptr %matrix, i64 %at
  switch i64 %M, label %many [
{_cases()}  ]
{few}many:
  %ahead = mul i64 %I, {4 * width * threads}
  call void @multiply(ptr %x, ptr %wp, ptr %yp, i64 %M, i64 %I, i64 %O, i64 {PANEL}, i64 %ahead)
  ret void
}}"""


def _cases() -> str:
    return "".join(f"    i64 {rows}, label %row.{rows}\n" for rows in range(1, FEW + 1))


def _packed_body(bits: int, width: int) -> str:
    """@body_B(job, task, worker)."""
    call = "@levels_{bits}_{rows}(ptr %x, ptr %wp, ptr %tp, ptr %{out}, i64 %I, i64 %O, i64 %words)"
    few = range(1, FEW + 1)
    blocks = "".join(
        f"row.{rows}:\n  call void {call.format(bits=bits, rows=rows, out='yp')}\n  ret void\n"
        for rows in few
    )
    return f"""
define internal void @body_{bits}(ptr %job, i64 %task, i64 %worker) #0 {{
entry:
{fetch("x", "w", "t", "y", "s", "M", "I", "O", "G")}
{_place(width)}
  %all = udiv i64 %I, {32 // bits}
  %words = udiv i64 %all, %G
  %before = mul i64 %p, {PANEL}
  %size = mul i64 %before, %all
  %at = add i64 %size, %c
  %wp = getelementptr i32, ptr %w, i64 %at
  %go = mul i64 %G, {2 * PANEL}
  %to = mul i64 %p, %go
  %tc = add i64 %to, %c
  %tp = getelementptr float, ptr %t, i64 %tc
  switch i64 %M, label %many [
{_cases()}  ]
{blocks}many:
  %so = mul i64 %I, {PANEL}
  %sw = mul i64 %so, %worker
  %scratch = getelementptr float, ptr %s, i64 %sw
  call void {call.format(bits=bits, rows=0, out="scratch")}
  call void @multiply(ptr %x, ptr %scratch, ptr %yp, i64 %M, i64 %I, i64 %O, i64 {PANEL}, i64 0)
  ret void
}}"""
