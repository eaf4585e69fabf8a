#!/bin/sh
# Writes server.properties from KAFKA_ variables, formats the folder once, and becomes the broker.
set -u
java() { command /opt/java/bin/java -cp '/opt/kafka/libs/*' "$@"; }
said=$(java -XX:TieredStopAtLevel=1 kafka.docker.KafkaDockerWrapper setup \
    --default-configs-dir /etc/kafka/docker --mounted-configs-dir /mnt/shared/config \
    --final-configs-dir /opt/kafka/config 2>&1) || case $said in
    *"already formatted"*) ;;
    *) echo "$said" >&2; exit 1 ;;
esac
exec /opt/java/bin/java ${KAFKA_HEAP_OPTS:-} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml \
    -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
