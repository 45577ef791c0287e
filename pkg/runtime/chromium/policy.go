package chromium

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/runtime"
)

// Policy says which addresses a page may be opened from. http and https only;
// loopback, link-local, multicast, unspecified and cloud metadata addresses are
// refused unless allowed.
//
// It is checked before a navigation and for every document that the page then
// asks for, redirects and frames included. It is not a firewall: a name may
// resolve differently when the browser asks again; what a page loads besides
// documents is not checked, nor is the first request of a window that a page
// opens, before the window is closed.
type Policy struct {
	// AllowLoopback allows loopback addresses.
	AllowLoopback bool
	// Allow lists hosts ("intranet.example"), addresses, networks
	// ("10.0.0.0/8") or host:port pairs that are allowed beyond the default.
	Allow []string
	// Deny lists the same kinds and wins over everything: put the control
	// plane's own addresses here.
	Deny []string
}

// Validate returns an error that names each entry that cannot be understood.
func (p Policy) Validate() error {
	var faults []error
	for _, e := range slices.Concat(p.Allow, p.Deny) {
		if strings.Contains(e, "/") {
			if _, err := netip.ParsePrefix(e); err != nil {
				faults = append(faults, fmt.Errorf("%q is no network; write it as 10.0.0.0/8", e))
			}
		} else if e == "" {
			faults = append(faults, errors.New("an empty entry in the list of addresses"))
		}
	}
	return errors.Join(faults...)
}

// metadata are the addresses and names under which clouds give out credentials
// and that are not link-local.
func metadata(host string, ip netip.Addr) bool {
	switch host {
	case "metadata", "metadata.google.internal", "metadata.goog":
		return true
	}
	switch ip.String() {
	case "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254":
		return true
	}
	return false
}

// check returns nil when raw may be opened, or an *ActionError: CodeURLRefused,
// or CodeNavigation when its host has no address. The message holds the reason
// and not the address.
func (p Policy) check(ctx context.Context, raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return refusedURL("only http and https addresses can be opened")
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	ips, err := resolve(ctx, host)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the address's host name does not resolve"}
	}
	for _, ip := range ips {
		switch {
		case listed(p.Deny, host, port, ip):
			return refusedURL("this host's configuration denies the address")
		case listed(p.Allow, host, port, ip):
		case ip.IsLoopback() && p.AllowLoopback:
		case ip.IsLoopback():
			return refusedURL("loopback addresses are refused unless this host's configuration allows them")
		case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast(), ip.IsMulticast(), ip.IsUnspecified(), metadata(host, ip):
			return refusedURL("link-local, multicast and metadata addresses are refused unless this host's configuration allows them")
		}
	}
	return nil
}

func refusedURL(why string) error {
	return &runtime.ActionError{Code: runtime.CodeURLRefused, Message: why}
}

// resolve returns all addresses of a host, IPv4 ones in their short form.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	// Chromium takes these for loopback without asking a resolver.
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	if ip, ok := oddIPv4(host); ok {
		return []netip.Addr{ip}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// listed reports whether an entry names the host, the host and port, or the address.
func listed(entries []string, host, port string, ip netip.Addr) bool {
	for _, e := range entries {
		e = strings.ToLower(e)
		if e == host || e == net.JoinHostPort(host, port) || e == ip.String() || e == net.JoinHostPort(ip.String(), port) {
			return true
		}
		if n, err := netip.ParsePrefix(e); err == nil && n.Contains(ip) {
			return true
		}
	}
	return false
}
