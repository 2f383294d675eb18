# jaxsr on NVIDIA GPUs. From the root of the repository:
#
#   docker build -f containers/cuda.Dockerfile -t jaxsr:cuda .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD/runs:/work/runs" jaxsr:cuda \
#     python -m jaxsr.train fast-srgan --data photos --out runs/mine --resume
#
# CUDA's libraries come with JAX's and torch's wheels; the host needs the driver for CUDA 13 and the
# NVIDIA container toolkit. gcc is for torch.compile.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/jaxsr
COPY . .
RUN pip install --no-cache-dir '.[cuda,generate,video,data]' \
    && useradd --create-home jaxsr \
    && mkdir /work \
    && chown jaxsr /work

USER jaxsr
WORKDIR /work
CMD ["python", "-m", "jaxsr.doctor"]
