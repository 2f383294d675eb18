# jaxsr on Cloud TPU VMs and in GKE. From the root of the repository:
#
#   docker build -f containers/tpu.Dockerfile -t jaxsr:tpu .
#   docker run --rm --privileged --net host -v "$PWD/runs:/work/runs" jaxsr:tpu \
#     python -m jaxsr.train fast-srgan --mesh 8 --out runs/mine --resume
#
# `--privileged` gives the container /dev/accel* or /dev/vfio, `--net host` the metadata server. It
# runs as root, to whom these devices belong. torch is the build for CPUs: it reads model definitions.
FROM python:3.12-slim-bookworm

WORKDIR /opt/jaxsr
COPY . .
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    'torch==2.13.0+cpu' '.[tpu,generate,video,data]'

WORKDIR /work
CMD ["python", "-m", "jaxsr.doctor"]
