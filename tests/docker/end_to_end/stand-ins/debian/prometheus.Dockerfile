# For prom/prometheus where it cannot be had: Debian's.
FROM debian:sid
RUN apt-get -o Acquire::Check-Valid-Until=false update && apt-get install --yes --no-install-recommends prometheus \
    && install --directory --owner nobody /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
