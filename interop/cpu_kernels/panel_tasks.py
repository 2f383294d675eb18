"""How XLA's threads share a product: what XLA calls, and the tasks that it gives them.

A handler gives tasks to XLA's threads and computes some itself until none is left. A task is some
outputs for all tokens: a body of `panel_kernels`. Words of the call's frame, of its buffers and of
XLA's table of functions are as in `cpu_calls`.
"""

from typing import Any

from jaxsr.ops import _cpu_calls as cpu_calls

PANEL = 64
"""Outputs of a panel."""
NAMES = {
    "float": "jaxsr_panels_float",
    "batched": "jaxsr_batched_product",
    4: "jaxsr_panels_4",
    8: "jaxsr_panels_8",
}

FEW = 2
"""Tokens up to which levels are unpacked in registers; for more, a panel is unpacked first."""
_SMALL = 32
"""Tokens up to which a task of a batched product is all of one matrix."""


# x, matrix, tables, y, scratch, M, I, O, G, tasks, most workers; next task, tasks done, references,
# workers. Scratch memory, for each worker its own, may be of a program that another process made.
_FIELDS = ("x", "w", "t", "y", "s", "M", "I", "O", "G", "T", "S", "next", "done", "refs", "workers")
_JOB = "{ ptr, ptr, ptr, ptr, ptr" + ", i64" * 10 + " }"


def _field(name: str) -> str:
    return f"getelementptr {_JOB}, ptr %job, i64 0, i32 {_FIELDS.index(name)}"


def fetch(*names: str) -> str:
    """Loads fields of the job, under their names."""
    return "\n".join(
        f"  %{n}.at = {_field(n)}\n  %{n} = load {'ptr' if n in 'xwtys' else 'i64'}, ptr %{n}.at"
        for n in names
    )


def handler(kind: Any, threads: int, width: int, schedule_word: int) -> str:
    """What XLA calls: it gives tasks to XLA's threads, and computes panels until none is left."""
    packed = kind in (4, 8)
    schedule = 8 * schedule_word
    word = "getelementptr i64, ptr {of}, i64 {at}"

    def buffer(name: str, places: int, index: int) -> str:
        return f"""
  %{name}.ps = {word.format(of="%frame", at=places)}
  %{name}.places = load ptr, ptr %{name}.ps
  %{name}.pp = {word.format(of=f"%{name}.places", at=index)}
  %{name}.b = load ptr, ptr %{name}.pp
  %{name}.dp = {word.format(of=f"%{name}.b", at=cpu_calls.BUFFER_DATA_WORD)}
  %{name} = load ptr, ptr %{name}.dp
  %{name}.ep = {word.format(of=f"%{name}.b", at=cpu_calls.BUFFER_EXTENTS_WORD)}
  %{name}.e = load ptr, ptr %{name}.ep
"""

    def extent(name: str, of: str, axis: int) -> str:
        place = word.format(of=f"%{of}.e", at=axis)
        return f"  %{name}.ap = {place}\n  %{name} = load i64, ptr %{name}.ap\n"

    inputs, outputs = cpu_calls.INPUT_PLACES_WORD, cpu_calls.OUTPUT_PLACES_WORD
    text = buffer("x", inputs, 0) + buffer("w", inputs, 1) + buffer("y", outputs, 0)
    first = 1 if kind == "batched" else 0
    text += extent("M", "x", first) + extent("I", "x", first + 1) + extent("O", "y", first + 1)
    text += f"  %few = icmp ule i64 %M, {FEW}\n"
    if kind == "batched":
        # A task is one matrix for a few tokens, else some of its columns.
        text += f"""{extent("N", "x", 0)}  %small = icmp ule i64 %M, {_SMALL}
  %G = select i1 %small, i64 %O, i64 {width}
  %parts = udiv i64 %O, %G
  %T = mul i64 %N, %parts
"""
    else:
        text += f"""  %width = select i1 %few, i64 {PANEL}, i64 {width}
  %T = udiv i64 %O, %width
"""
    values = {n: f"%{n}" for n in ("x", "w", "y", "M", "I", "O", "T")}
    values |= {"t": "null", "s": "null", "G": "0", "S": str(threads)}
    if kind == "batched":
        values["G"] = "%G"
    if packed:
        text += buffer("t", inputs, 2) + buffer("s", outputs, 1)
        text += extent("G", "t", 1) + extent("S", "s", 0)
        values |= {n: f"%{n}" for n in ("t", "s", "G", "S")}
    values |= {"next": "0", "done": "0", "refs": str(threads), "workers": "0"}
    stores = "".join(
        f"  %{n}.job = {_field(n)}\n"
        f"  store {'ptr' if n in 'xwtys' else 'i64'} {values[n]}, ptr %{n}.job\n"
        for n in _FIELDS
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
