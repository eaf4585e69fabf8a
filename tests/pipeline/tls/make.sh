#!/bin/sh
# Makes the keys and certificates of this folder anew, valid for a hundred years. They guard nothing.
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

key "$scratch/ca.key"
openssl req -x509 -new -key "$scratch/ca.key" -subj "/CN=test authority" -days 36500 -out ca.pem
for name in server client; do
    key "$scratch/$name.key"
    openssl req -new -key "$scratch/$name.key" -subj "/CN=$name" -out "$scratch/$name.csr"
    printf 'subjectAltName=DNS:broker.example,IP:127.0.0.1\n' >"$scratch/extensions"
    openssl x509 -req -in "$scratch/$name.csr" -CA ca.pem -CAkey "$scratch/ca.key" \
        -CAcreateserial -CAserial "$scratch/serial" -extfile "$scratch/extensions" -days 36500 \
        -out "$scratch/$name.crt" 2>/dev/null
    cat "$scratch/$name.key" "$scratch/$name.crt" >"$name.pem"
done
openssl pkcs8 -topk8 -in "$scratch/client.key" -passout pass:opensesame -out "$scratch/locked.key"
cat "$scratch/locked.key" "$scratch/client.crt" >client-locked.pem
