#!/bin/sh
# Makes the secrets that docker-compose.yml mounts, in the folder named (default
# deploy/secrets). What is there is kept, so it may be run again.
#
# The folder is its owner's alone; the files in it can be read by all, because
# Compose mounts them into containers as they are, whose users are others.
set -eu
umask 077
dir=${1:-deploy/secrets}
mkdir -p "$dir"
chmod 700 "$dir"

# put NAME: keeps standard input as a secret, whole or not at all.
put() {
	cat >"$dir/.$1.new"
	chmod 444 "$dir/.$1.new"
	mv "$dir/.$1.new" "$dir/$1"
	echo "made $dir/$1"
}
# random BYTES, in hex
random() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }

[ -s "$dir/postgres-password" ] || random 24 | put postgres-password
[ -s "$dir/database-url" ] ||
	printf 'postgres://berth:%s@postgres:5432/berth?sslmode=disable' "$(cat "$dir/postgres-password")" | put database-url
[ -s "$dir/master-key" ] || random 32 | put master-key
[ -s "$dir/admin-password" ] || random 16 | put admin-password
