"""`python -m jaxsr.check --model MODEL`: loads the model, checks it, prints the page."""

import json
import warnings

from jaxsr.comparison.check_options import CheckConfig
from jaxsr.comparison.export_options import ExportConfig
from jaxsr.interop.atomic_write import atomic_write, check_file
from jaxsr.models.example_inputs import Example, example_inputs, parse_inputs, settle
from jaxsr.models.load import load_model
from jaxsr.models.registry import LoadedModel
from jaxsr.runtime.activity import set_status


def run(config: CheckConfig) -> int:
    """Checks the model; returns the exit status."""
    import jax

    from jaxsr.comparison.check_module import check
    from jaxsr.comparison.check_result import report_of
    from jaxsr.comparison.report import finite, html_page, print_report
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.mesh import select_platform
    from jaxsr.runtime.setup import configure_jax

    if config.html is not None:
        check_file(config.html)
    set_status(f"loading {config.model}")
    configure_jax(config.compile_cache)  # no cache by default: compiling is timed
    select_platform(config.platform, simulated_devices=config.devices)
    warnings.simplefilter("ignore")  # of the user's libraries; the page stays one screen
    loaded, (args, kwargs) = load(config)
    set_status(f"running {config.model} in torch, float32 and float64, and in JAX")
    with jax.default_matmul_precision("highest"):
        result = check(
            loaded.network,
            *args,
            kwargs=kwargs,
            name=str(config.model),
            train=not config.eval_only,
            gradients=not config.forward_only,
            mesh=config.devices,
            modules=config.html is not None,
            lane_folding=(
                choose_folding("on", jax.devices()[0]) if config.lane_folding == "on" else None
            ),
        )
    if config.html is not None:
        atomic_write(config.html, html_page(report_of(result)).encode())
    if config.json:
        print(json.dumps(finite(result.as_json()), indent=2))
    else:
        print_report(report_of(result))
    return result.exit_status


def load(
    config: CheckConfig | ExportConfig, *, perturbed: bool = True
) -> tuple[LoadedModel, Example]:
    """The model and its inputs.

    Args:
      config: names them.
      perturbed: of weights that no file has; see `jaxsr.models.load.load_model`.

    Raises:
      FileNotFoundError, InputError: the model cannot be loaded or built, or has no inputs.
    """
    loaded = load_model(
        config.model, **config.loading(), random_weights=True, untrained=True, perturbed=perturbed
    )
    settle(loaded.network)
    return loaded, parse_inputs(config.input) if config.input else example_inputs(loaded)
