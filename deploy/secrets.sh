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
# Before there was a role for them, the daemons had the owner's URL.
[ -s "$dir/owner-url" ] || [ -s "$dir/runtime-password" ] || [ ! -s "$dir/database-url" ] || {
	mv "$dir/database-url" "$dir/owner-url"
	echo "$dir/database-url became $dir/owner-url, for the migrate service alone"
}
[ -s "$dir/owner-url" ] ||
	printf 'postgres://berth:%s@postgres:5432/berth?sslmode=disable' "$(cat "$dir/postgres-password")" | put owner-url
[ -s "$dir/runtime-password" ] || random 24 | put runtime-password
[ -s "$dir/database-url" ] ||
	printf 'postgres://berth_runtime:%s@postgres:5432/berth?sslmode=disable' "$(cat "$dir/runtime-password")" | put database-url
[ -s "$dir/master-key" ] || random 32 | put master-key
[ -s "$dir/admin-password" ] || random 16 | put admin-password
