#!/bin/sh
# Installs what Berth needs beside Go, where it is missing, and says so first.
#
#   scripts/install-deps.sh [postgres] [chromium] [cc] [python3]
#
# It installs on Debian and Ubuntu, as root or by `sudo -n`, and not where
# BERTH_INSTALL=0. Everywhere else it names the package and the command.
#
# Exit codes: 0 everything is there, 2 wrong usage, 3 something is missing.
# The functions have_X are called by a name put together, which shellcheck does
# not see.
# shellcheck disable=SC2317
set -eu

MISSING=3

say() { printf 'berth: %s\n' "$*" >&2; }

# Each have_X proves that X works, not only that a file of that name exists.

have_postgres() {
	dir=$(pg_config --bindir 2>/dev/null) || dir=
	for dir in "$dir" /usr/lib/postgresql/*/bin "$(dirname "$(command -v pg_ctl || echo /)")"; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/pg_ctl" ] && [ -x "$dir/postgres" ]; then
			return 0
		fi
	done
	return 1
}

# chromium_commands lists the names that the driver in pkg/runtime looks for.
chromium_commands() {
	echo chromium chromium-browser google-chrome
}

# Ubuntu's package chromium-browser is a script that asks for a snap: it has the
# name of a browser and no version.
have_chromium() {
	for name in $(chromium_commands); do
		path=$(command -v "$name") || continue
		if timeout 30 "$path" --version 2>/dev/null </dev/null | grep -Eq '(Chromium|Chrome).* [0-9]+\.'; then
			return 0
		fi
		say "$path is there but does not start (on Ubuntu it only stands for a snap)."
	done
	return 1
}

# A compiler without the C library's headers is a common half.
have_cc() {
	cc=${CC:-}
	[ -n "$cc" ] || cc=$(go env CC 2>/dev/null) || cc=
	[ -n "$cc" ] || cc=gcc
	# CC may hold flags.
	# shellcheck disable=SC2086
	printf '#include <stdlib.h>\nint main(void) { return 0; }\n' |
		$cc -x c -o /dev/null - >/dev/null 2>&1
}

# Plugins see the standard directories alone.
have_python3() {
	PATH=/usr/local/bin:/usr/bin:/bin python3 -c '' 2>/dev/null
}

packages() {
	case $1 in
	python3) echo python3 ;;
	postgres) echo postgresql ;;
	chromium) echo chromium chromium-sandbox fonts-liberation ;;
	cc) echo build-essential ;;
	esac
}

purpose() {
	case $1 in
	python3) echo "Python 3: an example of a plugin is written in it" ;;
	postgres) echo "a PostgreSQL server: the tests start one of their own" ;;
	chromium) echo "Chromium: browser devices run on it" ;;
	cc) echo "a C compiler: the SQLite driver is compiled with it" ;;
	esac
}

is_ubuntu() { grep -q '^ID=ubuntu$' /etc/os-release 2>/dev/null; }

# as_root runs a command as root, or returns non-zero without asking anybody.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

may_install() {
	[ "${BERTH_INSTALL:-1}" != 0 ] && command -v apt-get >/dev/null &&
		{ [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

# known reports whether apt's lists, as they are, offer all the packages.
known() {
	for package in "$@"; do
		apt-cache policy "$package" 2>/dev/null | grep -Eq '^ *Candidate: [^(]' || return 1
	done
}

apt() {
	# Another installation may hold the lock; standard output is the caller's.
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >&2 </dev/null
}

install() {
	fresh=no
	if ! known "$@"; then
		apt update
		fresh=yes
	fi
	apt install --no-install-recommends "$@" && return 0
	[ "$fresh" = no ] || return 1
	# Old lists name versions that the mirror no longer has.
	apt update && apt install --no-install-recommends "$@"
}

remedy() {
	if [ "$1" = chromium ] && is_ubuntu; then
		say "Ubuntu has Chromium as a snap only: sudo snap install chromium"
	elif command -v apt-get >/dev/null; then
		say "remedy: sudo apt-get install $(packages "$1")"
	else
		say "remedy: install with your system's package manager what Debian calls: $(packages "$1")"
	fi
}

provide() {
	"have_$1" && return 0
	say "missing: $(purpose "$1")."
	if [ "$1" = chromium ] && is_ubuntu || ! may_install; then
		remedy "$1"
		return 1
	fi
	say "installing: apt-get install $(packages "$1") (BERTH_INSTALL=0 forbids this)"
	# The list is split into package names on purpose.
	# shellcheck disable=SC2046
	if install $(packages "$1") && "have_$1"; then
		return 0
	fi
	say "the installation did not bring $(purpose "$1")."
	remedy "$1"
	return 1
}

[ $# -gt 0 ] || set -- postgres chromium cc python3
for want in "$@"; do
	case $want in
	postgres | chromium | cc | python3) ;;
	*)
		say "usage: $0 [postgres] [chromium] [cc] [python3]"
		exit 2
		;;
	esac
done

code=0
for want in "$@"; do
	provide "$want" || code=$MISSING
done
exit $code
