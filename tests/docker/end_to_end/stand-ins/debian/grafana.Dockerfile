# For grafana/grafana, which no package of Debian has: nothing that draws. It sees that its files are
# mounted, and waits.
FROM debian:sid
CMD ["/bin/sh", "-c", \
    "test -r \"$GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH\" \
    && test -r /etc/grafana/provisioning/datasources/prometheus.yaml && exec sleep infinity"]
