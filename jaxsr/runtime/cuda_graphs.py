"""What XLA puts into CUDA graphs on GPUs, as options of one program's compilation."""

_COMMANDS = (
    "FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION",
    "WHILE", "CONDITIONAL",
)  # fmt: skip

LOOP_IN_ONE_GRAPH: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ",".join(_COMMANDS)}
"""A loop is one graph, with what its steps decide on. By default XLA starts graphs in each step."""
