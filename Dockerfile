# cputrain with PyTorch's CPU build: docker build --tag cputrain . && docker run cputrain info
FROM python:3.13-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY cputrain cputrain
COPY launch launch
COPY docs/cputrain.1 docs/cputrain.1
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
# the default index has PyTorch with CUDA, some gigabytes
RUN pip install --no-cache-dir "torch==2.13.0" --index-url https://download.pytorch.org/whl/cpu
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir /wheels/*.whl \
    && useradd --create-home --uid 1000 trainer
USER 1000
WORKDIR /work
ENTRYPOINT ["cputrain"]
CMD ["--help"]
