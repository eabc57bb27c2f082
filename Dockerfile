# syntax=docker/dockerfile:1
# A single static binary, run by an unprivileged user. Pass secrets at run time, in files or the environment.

FROM rust:1.89.0-slim-bookworm AS build
# ring, the cryptography library for TLS, compiles C code. ca-certificates has the CA certificates that verify TLS servers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/*
RUN rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /build
COPY Cargo.toml Cargo.lock build.rs ./
COPY crates crates
COPY src src
# The Git repository is not in the build context, so pass the commit: docker build --build-arg BUILD_COMMIT=$(git rev-parse --short=10 HEAD)
ARG BUILD_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    target="$(uname -m)-unknown-linux-musl" \
    && cargo build --release --locked --bin eds --target "$target" \
    && install -D "target/$target/release/eds" /image/usr/bin/eds \
    && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
    && install --directory --mode 0700 /state

FROM scratch
COPY --from=build /image /
COPY --from=build --chown=10001:10001 /state /var/lib/eds
COPY config/eds.toml config/relay.toml LICENSE-* /usr/share/doc/eds/
USER 10001
# Loopback is not reachable from outside a container; publish the ports only to trusted networks. These override the configuration file.
ENV EDS_INPUT__LISTEN=0.0.0.0:8094 \
    EDS_HTTP__LISTEN=0.0.0.0:8095 \
    EDS_HTTP__PUBLIC=true
EXPOSE 8094/udp 8095/tcp
# Asks the address in EDS_HTTP__LISTEN. With http.cert_file, use `eds healthy https://127.0.0.1:8095`.
HEALTHCHECK --interval=5s --timeout=5s --start-period=5s --retries=5 CMD ["/usr/bin/eds", "healthy"]
ENTRYPOINT ["/usr/bin/eds"]
