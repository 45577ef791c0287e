package chromium

import (
	"net/netip"
	"strconv"
	"strings"
)

// oddIPv4 reads the forms of IPv4 addresses that browsers accept besides the
// usual one: fewer than four parts, octal and hexadecimal ("0x7f.1",
// "2130706433"). A check that did not know them could be walked around.
func oddIPv4(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) == 0 || len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		n, err := strconv.ParseUint(prefixed(part), 0, 64)
		if err != nil {
			return netip.Addr{}, false
		}
		last := i == len(parts)-1
		bits := 8
		if last {
			bits = 8 * (4 - i)
		}
		if n >= 1<<bits {
			return netip.Addr{}, false
		}
		value = value<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// prefixed writes an octal number as Go does; "0x" alone means zero.
func prefixed(part string) string {
	switch {
	case part == "0x":
		return "0"
	case strings.HasPrefix(part, "0x"), part == "0", strings.Contains(part, "_"):
		return strings.ReplaceAll(part, "_", "!")
	case strings.HasPrefix(part, "0"):
		return "0o" + strings.TrimLeft(part[:len(part)-1], "0") + part[len(part)-1:]
	}
	return part
}
