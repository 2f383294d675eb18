"""How XLA's threads share a product: the function that XLA calls, and the tasks that it gives them.

A handler gives tasks to XLA's threads and computes some itself until all are done. A task is some
outputs for all tokens: a body of `panel_kernels`. Words of the call's frame, of its buffers and of
XLA's table of functions are as in `cpu_calls`.
"""

from typing import Any

from jaxsr.xla_calls import calls as cpu_calls

PANEL = 64
"""Outputs of a panel."""
NAMES = {
    "float": "jaxsr_panels_float",
    "attention": "jaxsr_compiled_attention",
    "attention_few": "jaxsr_compiled_attention_of_few",
    4: "jaxsr_panels_4",
    8: "jaxsr_panels_8",
}

FEW = 2
"""Tokens up to which levels are unpacked in registers; for more, a panel is unpacked first."""


# x, matrix, tables or second matrix, third matrix or what is visible, y, sums, scratch; M, I, O, G,
# H, bytes of a row of what is visible, tasks, most workers; next task, tasks done, references,
# workers. Scratch memory, for each worker its own, may be of a program that another process made.
_POINTERS = ("x", "w", "t", "v", "y", "z", "s")
_NUMBERS = ("M", "I", "O", "G", "H", "B", "T", "S", "next", "done", "refs", "workers")
_FIELDS = (*_POINTERS, *_NUMBERS)
_JOB = "{ " + ", ".join(["ptr"] * len(_POINTERS) + ["i64"] * len(_NUMBERS)) + " }"


def _type(field: str) -> str:
    return "ptr" if field in _POINTERS else "i64"


def _field(name: str) -> str:
    return f"getelementptr {_JOB}, ptr %job, i64 0, i32 {_FIELDS.index(name)}"


def fetch(*names: str) -> str:
    """Loads fields of the job, under their names."""
    return "\n".join(
        f"  %{n}.at = {_field(n)}\n  %{n} = load {_type(n)}, ptr %{n}.at" for n in names
    )


def splat(value: str, name: str, kind: str, width: int) -> str:
    """A vector with one value in all places."""
    vector = f"<{width} x {kind}>"
    return (
        f"  %{name}.0 = insertelement {vector} poison, {kind} {value}, i64 0\n"
        f"  %{name} = shufflevector {vector} %{name}.0, {vector} poison, "
        f"<{width} x i32> zeroinitializer\n"
    )


def over_rows(name: str, most: int, call: str, *, count: str = "%M") -> str:
    """A loop over tokens, by as many at a time as there is a function for, and at last the rest."""
    cases = "".join(f"    i64 {r}, label %{name}.{r}\n" for r in range(1, most))
    blocks = "".join(
        f"{name}.{r}:\n" + call.format(rows=r) + f"  br label %{name}.next\n"
        for r in range(1, most + 1)
    )
    return f"""
  %{name}.left = sub i64 {count}, %m
  switch i64 %{name}.left, label %{name}.{most} [
{cases}  ]
{blocks}{name}.next:
"""


_WORD = "getelementptr i64, ptr {of}, i64 {at}"


def _buffer(name: str, places: int, index: int | str) -> str:
    return f"""
  %{name}.ps = {_WORD.format(of="%frame", at=places)}
  %{name}.places = load ptr, ptr %{name}.ps
  %{name}.pp = {_WORD.format(of=f"%{name}.places", at=index)}
  %{name}.b = load ptr, ptr %{name}.pp
  %{name}.dp = {_WORD.format(of=f"%{name}.b", at=cpu_calls.BUFFER_DATA_WORD)}
  %{name} = load ptr, ptr %{name}.dp
  %{name}.ep = {_WORD.format(of=f"%{name}.b", at=cpu_calls.BUFFER_EXTENTS_WORD)}
  %{name}.e = load ptr, ptr %{name}.ep
"""


def _extent(name: str, of: str, axis: int) -> str:
    place = _WORD.format(of=f"%{of}.e", at=axis)
    return f"  %{name}.ap = {place}\n  %{name} = load i64, ptr %{name}.ap\n"


def _buffers(inputs: str, outputs: str) -> str:
    """Loads the places of operands and results, a letter each, under these names."""
    sides = ((inputs, cpu_calls.INPUT_PLACES_WORD), (outputs, cpu_calls.OUTPUT_PLACES_WORD))
    return "".join(_buffer(name, word, at) for side, word in sides for at, name in enumerate(side))


def _job_of(kind: Any, width: int) -> tuple[str, str]:
    """The code by which the handler reads its operands, and the fields of the job."""
    if kind in ("attention", "attention_few"):
        extents = {"N": "x0", "M": "x1", "H": "x2", "I": "x3", "K": "w1", "O": "w2", "S": "s0"}
        extents |= {"F": "v0", "v1": "v1", "v2": "v2"}
        text = _buffers("xwtv", "yzs") + "".join(
            _extent(name, of, int(axis)) for name, (of, axis) in extents.items()
        )
        # A task is `width` queries of one head, or one of all heads that share keys.
        text += f"""  %row = mul i64 %v1, %v2
  %alone = icmp eq i64 %F, 1
  %B = select i1 %alone, i64 0, i64 %row
  %G = udiv i64 %H, %K
  %rounded = add i64 %M, {width - 1}
  %parts = udiv i64 %rounded, {width}
  %heads = mul i64 %N, {"%H" if kind == "attention" else "%K"}
  %T = mul i64 %heads, {"%parts" if kind == "attention" else "%M"}
"""
        return text, "xwtvyzsMIOGHBTS"
    packed = kind in (4, 8)
    text = _buffers("xwt", "ys") if packed else _matrices()
    text += _extent("M", "x", 0) + _extent("I", "x", 1) + _extent("O", "y", 1)
    text += f"""  %few = icmp ule i64 %M, {FEW}
  %width = select i1 %few, i64 {PANEL}, i64 {width}
  %T = udiv i64 %O, %width
"""
    if packed:
        return text + _extent("G", "t", 1) + _extent("S", "s", 0), "xwtysMIOGTS"
    return text, "xwtvyMIOGHT"


def _matrices() -> str:
    """Up to three matrices: places w, t and v; panels before the second, G, and the third, H."""
    inputs = cpu_calls.INPUT_PLACES_WORD
    text = f"""
  %inputs.at = {_WORD.format(of="%frame", at=cpu_calls.INPUT_COUNT_WORD)}
  %inputs = load i64, ptr %inputs.at
  %last = sub i64 %inputs, 1
"""
    for place in (2, 3):
        text += f"  %is{place} = icmp ult i64 {place}, %inputs\n"
        text += f"  %at{place} = select i1 %is{place}, i64 {place}, i64 %last\n"
    text += _buffers("xw", "y") + _buffer("t", inputs, "%at2") + _buffer("v", inputs, "%at3")
    return (
        text
        + f"""{_extent("G", "w", 0)}{_extent("second", "t", 0)}  %H = add i64 %G, %second
"""
    )


def handler(kind: Any, threads: int, width: int, schedule_word: int) -> str:
    """XLA calls it: it gives tasks to XLA's threads, and computes panels until all are done."""
    schedule, word = 8 * schedule_word, _WORD
    text, fields = _job_of(kind, width)
    values = dict.fromkeys(_POINTERS, "null") | dict.fromkeys(_NUMBERS, "0")
    values |= {"S": str(threads), "refs": str(threads)} | {name: f"%{name}" for name in fields}
    stores = "".join(
        f"  %{n}.job = {_field(n)}\n  store {_type(n)} {values[n]}, ptr %{n}.job\n" for n in _FIELDS
    )
    tasks = "".join(
        f"  %args{i} = alloca [5 x i64]\n  store i64 40, ptr %args{i}\n"
        + "".join(
            f"  %args{i}.{at} = getelementptr i64, ptr %args{i}, i64 {at}\n"
            f"  store ptr {value}, ptr %args{i}.{at}\n"
            for at, value in ((1, "null"), (2, "%context"), (3, f"@task_{kind}"), (4, "%job"))
        )
        + f"  %error{i} = call ptr %schedule(ptr %args{i})\n"
        + f"  %refused{i} = icmp ne ptr %error{i}, null\n"
        f"  br i1 %refused{i}, label %drop{i}, label %given{i}\ndrop{i}:\n"
        f"  call void @release_{kind}(ptr %job)\n  br label %given{i}\ngiven{i}:\n"
        for i in range(threads - 1)
    )
    return f"""
define internal void @run_{kind}(ptr %job) #0 {{
entry:
{fetch("T", "S")}
  %next = {_field("next")}
  %done = {_field("done")}
  %workers = {_field("workers")}
  %worker = atomicrmw add ptr %workers, i64 1 seq_cst
  %welcome = icmp ult i64 %worker, %S
  br i1 %welcome, label %loop, label %end
loop:
  %task = atomicrmw add ptr %next, i64 1 seq_cst
  %more = icmp ult i64 %task, %T
  br i1 %more, label %body, label %end
body:
  call void @body_{kind}(ptr %job, i64 %task, i64 %worker)
  %old = atomicrmw add ptr %done, i64 1 seq_cst
  br label %loop
end:
  ret void
}}
define internal void @release_{kind}(ptr %job) #0 {{
entry:
  %refs = {_field("refs")}
  %old = atomicrmw sub ptr %refs, i64 1 seq_cst
  %last = icmp eq i64 %old, 1
  br i1 %last, label %drop, label %end
drop:
  call void @free(ptr %job)
  br label %end
end:
  ret void
}}
define internal void @task_{kind}(ptr %job) #0 {{
  call void @run_{kind}(ptr %job)
  call void @release_{kind}(ptr %job)
  ret void
}}
define ptr @{NAMES[kind]}(ptr %frame) #0 {{
entry:
  %ext.at = {word.format(of="%frame", at=1)}
  %ext = load ptr, ptr %ext.at
  %is_query = icmp ne ptr %ext, null
  br i1 %is_query, label %version, label %start
version:
  %meta.at = {word.format(of="%ext", at=3)}
  %meta = load ptr, ptr %meta.at
  %numbers = getelementptr i32, ptr %meta, i64 6
  store i32 0, ptr %numbers
  %minor = getelementptr i32, ptr %meta, i64 7
  store i32 3, ptr %minor
  ret ptr null
start:
  %api.at = {word.format(of="%frame", at=2)}
  %api = load ptr, ptr %api.at
  %context.at = {word.format(of="%frame", at=3)}
  %context = load ptr, ptr %context.at
  %schedule.at = getelementptr i8, ptr %api, i64 {schedule}
  %schedule = load ptr, ptr %schedule.at
{text}  %job = call ptr @malloc(i64 {8 * len(_FIELDS)})
{stores}{tasks}  call void @run_{kind}(ptr %job)
  %done = {_field("done")}
  br label %wait
wait:
  %count = load atomic i64, ptr %done seq_cst, align 8
  %ready = icmp uge i64 %count, %T
  br i1 %ready, label %end, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  br label %wait
end:
  call void @release_{kind}(ptr %job)
  ret ptr null
}}"""
