package localmode

import (
	"net"
	"strconv"
)

// BaseURL is how a process of this machine reaches what listens at address: by
// loopback where it listens everywhere.
func BaseURL(address net.Addr) string {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return "http://" + address.String()
	}
	host := tcp.IP.String()
	if tcp.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}
