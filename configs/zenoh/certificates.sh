#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a certificate authority and a certificate for each name, for Zenoh with mutual TLS:
#
#     configs/zenoh/certificates.sh /etc/ustreamer/tls gateway fleet backend
#
# The common name of each certificate is the name. An existing authority is used again, and no file is replaced. Keep
# ca.key away from the vehicle. DAYS (825) is the lifetime of a certificate, HOSTS the names and addresses in it.
set -eu
umask 077

directory=${1:?expected a directory and names, such as: certificates.sh tls gateway fleet}
shift
days=${DAYS:-825}
hosts=${HOSTS:-DNS:localhost,IP:127.0.0.1}
mkdir -p "$directory"
cd "$directory"

new_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"
}

if [ ! -e ca.pem ]; then
    new_key ca
    openssl req -x509 -new -key ca.key -sha256 -days "$days" -subj "/CN=ustreamer authority" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -out ca.pem
fi
for name in "$@"; do
    [ ! -e "$name.pem" ] || continue
    new_key "$name"
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=DNS:%s,%s\n' \
        "$name" "$hosts" >"$name.ext"
    openssl req -new -key "$name.key" -subj "/CN=$name" |
        openssl x509 -req -sha256 -days "$days" -CA ca.pem -CAkey ca.key -CAcreateserial -extfile "$name.ext" -out "$name.pem"
    rm "$name.ext"
    chmod 644 "$name.pem"
done
chmod 644 ca.pem
