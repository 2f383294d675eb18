"""Operations that XLA puts into CUDA graphs on GPUs, as options of one program's compilation."""

_COMMANDS = (
    "FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION",
    "WHILE", "CONDITIONAL",
)  # fmt: skip

LOOPS_IN_GRAPHS: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ",".join(_COMMANDS)}
"""The kernels of a loop's step are in graphs, too; by XLA's default each is launched by itself."""
