"""Operations that XLA puts into CUDA graphs on GPUs, as compiler options of one program."""

_COMMANDS = (
    "FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION",
    "WHILE", "CONDITIONAL",
)  # fmt: skip

LOOPS_IN_GRAPHS: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ",".join(_COMMANDS)}
"""Also puts the kernels of a loop's step into graphs; by XLA's default each is launched by
itself."""
