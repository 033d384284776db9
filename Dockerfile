# The notebooks in JupyterLab, on any machine that runs Docker (doc/where_it_runs.md):
#
#   docker build --tag kernel-ladder .
#   docker run --rm --publish 8888:8888 kernel-ladder
#
# With an NVIDIA GPU, its container toolkit, and a driver for CUDA 13 (or 12: cuda12):
#
#   docker build --tag kernel-ladder --build-arg ACCELERATOR=cuda13 .
#   docker run --rm --gpus all kernel-ladder make train

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ make python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /kernel-ladder
COPY . .
ARG ACCELERATOR=
RUN make setup .venv/.notebooks ACCELERATOR=$ACCELERATOR
EXPOSE 8888
CMD ["make", "notebooks", "ARGS=--ip=0.0.0.0 --no-browser"]
