# Berth's images, a target each: control (api, scheduler, leasekeeper and the
# command line), hostagent (the Host Agent with a Chromium) and caddy (what is in
# front). Needs no BuildKit. Behind proxies: --build-arg HTTPS_PROXY=... and
# --build-arg GOPROXY=...

FROM golang:1.26-bookworm AS build
ARG GOPROXY
ARG GOSUMDB
# Static, with the C of SQLite's driver in it: the images need no libc.
ENV CGO_ENABLED=1 GOFLAGS="-buildvcs=false -trimpath -tags=netgo,osusergo,sqlite_omit_load_extension"
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# What takes longest to compile and changes with go.mod alone, in a layer of its own.
RUN go build github.com/mattn/go-sqlite3 github.com/jackc/pgx/v5/pgxpool github.com/labstack/echo/v4 \
      github.com/pb33f/libopenapi-validator github.com/prometheus/client_golang/prometheus/promhttp \
      github.com/golang-migrate/migrate/v4/database/pgx/v5 github.com/lestrrat-go/jwx/v2/jwt k8s.io/apimachinery/pkg/labels
COPY api ./api
COPY cmd ./cmd
COPY db ./db
COPY pkg ./pkg
ARG VERSION=dev
RUN go build -ldflags "-s -w -X main.version=${VERSION} -linkmode external -extldflags '-static'" \
      -o /out/bin/ ./cmd/api ./cmd/scheduler ./cmd/leasekeeper ./cmd/hostagent ./cmd/berth \
 && mkdir -p /out/lib/blobs /out/lib/hosts /out/run/enrolment /out/data

# The control plane. Volumes begin as these directories are: owned by the user.
FROM gcr.io/distroless/static-debian12:nonroot AS control
COPY --from=build --chown=65532:65532 /out/lib /var/lib/berth
COPY --from=build --chown=65532:65532 /out/run /run/berth
COPY --from=build /out/bin/api /out/bin/scheduler /out/bin/leasekeeper /out/bin/berth /usr/local/bin/
USER 65532:65532
ENV PATH=/usr/local/bin BERTH_BLOB_DIR=/var/lib/berth/blobs BERTH_CONFIG_DIR=/tmp/berth
CMD ["berth", "--help"]

# The Host Agent. Its browser's sandbox needs the user namespaces that
# deploy/seccomp-hostagent.json allows.
FROM debian:bookworm-slim AS hostagent
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates chromium fonts-liberation \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 65532 berth \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /var/lib/berth --shell /usr/sbin/nologin berth
COPY --from=build --chown=65532:65532 /out/lib /var/lib/berth
COPY --from=build --chown=65532:65532 /out/run /run/berth
COPY --from=build /out/bin/hostagent /out/bin/berth /usr/local/bin/
USER 65532:65532
ENV BERTH_STATE_ROOT=/var/lib/berth/hosts
CMD ["hostagent"]

# In front of the API. Certificates are kept in /data.
FROM caddy:2 AS caddy
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
