#!/bin/sh
exec /opt/java/bin/java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dlog4j2.configurationFile=/etc/kafka/docker/tools-log4j2.yaml \
    -cp '/opt/kafka/libs/*' org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
