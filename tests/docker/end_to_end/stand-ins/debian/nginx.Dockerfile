# For nginx's own image where it cannot be had: Debian's. The name server of these containers is not
# Docker's: its address takes the place of that one in the settings.
FROM debian:sid
RUN apt-get -o Acquire::Check-Valid-Until=false update && apt-get install --yes --no-install-recommends nginx \
    && rm /etc/nginx/sites-enabled/default
CMD ["/bin/sh", "-c", \
    "server=$(sed -n 's/^nameserver //p' /etc/resolv.conf | head -n 1); mkdir /tmp/settings; \
    for each in /etc/nginx/conf.d/*.conf; do \
        sed \"s/127\\.0\\.0\\.11/$server/\" $each >/tmp/settings/${each##*/}; done; \
    sed 's#/etc/nginx/conf.d/#/tmp/settings/#' /etc/nginx/nginx.conf >/tmp/nginx.conf; \
    exec nginx -c /tmp/nginx.conf -g 'daemon off;'"]
