# syntax=docker/dockerfile:1
# One binary on Debian, run by a user without rights. Secrets come at run time, by file or environment.

FROM rust:1.89.0-slim-bookworm AS build
# ring, which does the cryptography of TLS, compiles C.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY Cargo.toml Cargo.lock build.rs ./
COPY crates crates
COPY src src
# The repository stays outside: docker build --build-arg BUILD_COMMIT=$(git rev-parse --short=10 HEAD)
ARG BUILD_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin eds \
    && cp target/release/eds /usr/local/bin/eds

FROM debian:12.11-slim
# The authorities that vouch for servers over TLS.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin eds \
    && install --directory --owner 10001 --mode 0700 /var/lib/eds
COPY --from=build /usr/local/bin/eds /usr/bin/eds
COPY config/eds.toml config/relay.toml /usr/share/doc/eds/
COPY LICENSE-* /usr/share/doc/eds/
USER 10001
# Within a container loopback is nobody's; the ports are opened to the network that one chooses.
ENV EDS_INPUT__LISTEN=0.0.0.0:8094 \
    EDS_HTTP__LISTEN=0.0.0.0:8095
EXPOSE 8094/udp 8095/tcp
ENTRYPOINT ["/usr/bin/eds"]
CMD ["run"]
