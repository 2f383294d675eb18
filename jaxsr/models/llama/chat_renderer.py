"""Renders chat templates in a process of its own, with limits of time, memory and output.

A template is a program that comes with a model. The sandbox keeps it from Python's internals, and
the process keeps it from the rest: loops in loops, texts that double. `python chat_renderer.py`
reads a request a line from its standard input and answers each in a line; it imports jinja2 alone.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

RENDER_S = 10.0
"""Seconds that a template may take; those of models take milliseconds."""
MEMORY_BYTES = 2**30
MOST_CHARACTERS = 2**22
"""Limit of a rendered chat that grows beyond its messages."""
_RUN = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"


class TemplateFailure(Exception):
    """A template failed, or took too long; the message is the reason."""


class Renderer:
    """A process that renders templates, made anew where it had to be ended."""

    def __init__(self) -> None:
        self._process = None

    def render(
        self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        """The text of a chat, up to where the model's answer begins.

        Args:
          template: its source.
          messages: role, content and whatever else the template reads of each.
          variables: further names for it: special tokens, tools, documents.

        Raises:
          TemplateFailure: the template fails, or takes more than its time, memory or output.
        """
        import select
        import subprocess

        from jaxsr.interop.isolated import isolated_command

        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [*isolated_command(_RUN), str(RENDER_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the command
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"template": template, "messages": list(messages), "variables": variables}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            # The process ends itself; this is for one that was stopped.
            ready, _, _ = select.select([self._process.stdout], [], [], 3 * RENDER_S)
            line = self._process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        if not line:
            self.close()
            raise TemplateFailure(
                f"it takes more than {RENDER_S:g} s or {MEMORY_BYTES // 2**20} MiB"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise TemplateFailure(answer["error"])
        return answer["text"]

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:  # unread input
                        continue
            self._process = None

    __del__ = close


def _environment() -> Any:
    """The sandboxed environment of templates, with the names that `transformers` gives them."""
    from datetime import datetime

    import jinja2
    import jinja2.nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks answers for training: here, its content."""

        tags = {"generation"}  # noqa: RUF012  (what jinja2 asks for)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _answer(request: Mapping[str, Any]) -> dict[str, str]:
    try:
        import jinja2
    except ImportError as error:
        return {"error": f"jinja2 cannot be imported ({error}); install it again"}
    variables = request["variables"]
    contents = [message.get("content") for message in request["messages"]]
    contents += [variables[name] for name in ("tools", "documents") if variables[name]]
    most = MOST_CHARACTERS + 4 * sum(len(str(one)) for one in contents)
    parts, length = [], 0
    try:
        template = _environment().from_string(request["template"])
        for part in template.generate(
            messages=request["messages"], add_generation_prompt=True, **variables
        ):
            parts.append(part)
            length += len(part)
            if length > most:
                return {"error": f"it writes more than {most:,} characters"}
        return {"text": "".join(parts)}
    except MemoryError:
        return {"error": f"it takes more than {MEMORY_BYTES // 2**20} MiB"}
    except jinja2.TemplateError as error:
        return {"error": " ".join(str(error).split())}
    except Exception as error:  # a template computes whatever it likes: TypeError, KeyError, …
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}; use --raw"}


def _main() -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = float(sys.argv[1])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process
        answer = json.dumps(_answer(json.loads(line))).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
