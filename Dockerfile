# syntax=docker/dockerfile:1
# One static binary and nothing else, run by a user without rights. Secrets come at run time, by file or environment.

FROM rust:1.89.0-slim-bookworm AS build
# ring, which does the cryptography of TLS, compiles C. The certificates are the authorities that vouch for servers over TLS.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/*
RUN rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /build
COPY Cargo.toml Cargo.lock build.rs ./
COPY crates crates
COPY src src
# The repository stays outside: docker build --build-arg BUILD_COMMIT=$(git rev-parse --short=10 HEAD)
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
# Within a container loopback is nobody's; the ports are opened to the network that one chooses.
ENV EDS_INPUT__LISTEN=0.0.0.0:8094 \
    EDS_HTTP__LISTEN=0.0.0.0:8095
EXPOSE 8094/udp 8095/tcp
# Of a node; a relay is asked by `eds healthy 127.0.0.1:8093`.
HEALTHCHECK --interval=5s --timeout=5s --start-period=5s --retries=5 CMD ["/usr/bin/eds", "healthy"]
ENTRYPOINT ["/usr/bin/eds"]
