# `nac-openood serve` without CUDA:
#   docker build -t nac-openood .
#   docker run -p 8000:8000 -v "$PWD":/work:ro -e NAC_TOKEN=... nac-openood \
#       --detector birds.nac --arch net.py:make --checkpoint net.pt
FROM python:3.13-slim
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu
COPY . /src
RUN pip install --no-cache-dir "/src[serve]" && rm -r /src
WORKDIR /work
USER nobody
EXPOSE 8000
ENTRYPOINT ["nac-openood", "serve", "--host", "0.0.0.0"]
