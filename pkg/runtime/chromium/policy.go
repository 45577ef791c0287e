package chromium

import (
	"cmp"
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
// A step's address and every document that a page asks for, redirects and frames
// included, is checked before it is asked for, so that the refusal has its
// reason; what decides is the gate, which judges every connection of the browser
// and dials what it judged.
type Policy struct {
	// AllowLoopback allows loopback addresses.
	AllowLoopback bool
	// Allow lists hosts ("intranet.example"), addresses, networks
	// ("10.0.0.0/8") or host:port pairs that are allowed beyond the default.
	Allow []string
	// Deny lists the same kinds and wins over everything.
	Deny []string
	// ControlPlane lists host:port pairs of Berth itself: they are refused under
	// every name that resolves to one of their addresses, and one on this machine at
	// each of this machine's addresses, since it may listen on all of them. Allow
	// wins, for a page that is served at the same address and port under a name of
	// its own.
	ControlPlane []string
}

// Validate returns an error that names each entry that cannot be understood.
func (p Policy) Validate() error {
	var faults []error
	for _, e := range p.ControlPlane {
		if _, _, err := net.SplitHostPort(e); err != nil {
			faults = append(faults, fmt.Errorf("%q is no address of the control plane; write host:port", e))
		}
	}
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
	host, port := hostOf(raw)
	_, err = p.judge(ctx, host, port)
	if errors.Is(err, unresolved) {
		return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the address's host name does not resolve"}
	}
	return err
}

// Endpoint is the host:port of the server at an http or https address, for
// [Policy.ControlPlane].
func Endpoint(address string) string { return net.JoinHostPort(hostOf(address)) }

// hostOf is the host and the port of an http or https address.
func hostOf(raw string) (host, port string) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", ""
	}
	if port = u.Port(); port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Hostname(), port
}

// judge returns the addresses of a host if each of them may be connected to at
// that port; otherwise an *ActionError (CodeURLRefused), unresolved, or ctx.Err().
func (p Policy) judge(ctx context.Context, host, port string) ([]netip.Addr, error) {
	host = strings.TrimRight(strings.ToLower(host), ".")
	if none := (netip.Addr{}); metadata(host, none) && !listed(p.Allow, host, port, none) {
		return nil, errMetadata
	}
	ips, err := resolve(ctx, host)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil || len(ips) == 0 {
		return nil, unresolved
	}
	for _, ip := range ips {
		if err := p.judgeAddress(ctx, host, port, ip); err != nil {
			return nil, err
		}
		// What is reached in the end behind a translator.
		if inner, ok := embedded(ip); ok {
			if err := p.judgeAddress(ctx, host, port, inner); err != nil {
				return nil, err
			}
		}
	}
	return ips, nil
}

func (p Policy) judgeAddress(ctx context.Context, host, port string, ip netip.Addr) error {
	switch {
	case listed(p.Deny, host, port, ip):
		return refusedURL("this host's configuration denies the address")
	case listed(p.Allow, host, port, ip):
		return nil
	case p.isControlPlane(ctx, host, port, ip):
		return refusedURL("the address is the control plane's own; a page at the same address and port needs its name in this host's list of allowed ones")
	case ip.IsLoopback() && p.AllowLoopback:
		return nil
	case ip.IsLoopback():
		return refusedURL("loopback addresses are refused unless this host's configuration allows them")
	case metadata(host, ip) || !routable(ip):
		return errMetadata
	}
	return nil
}

// routable is false for addresses at which no page lives: this machine's
// "unspecified" ones, link-local, multicast, broadcast.
func routable(ip netip.Addr) bool {
	return !(ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() ||
		ip.Is4() && (ip.As4()[0] == 0 || ip.As4()[0] >= 240))
}

// isControlPlane reports whether an address is one of the control plane's.
func (p Policy) isControlPlane(ctx context.Context, host, port string, ip netip.Addr) bool {
	for _, e := range p.ControlPlane {
		h, at, err := net.SplitHostPort(e)
		if err != nil || at != port {
			continue
		}
		if strings.EqualFold(h, host) {
			return true
		}
		// One that does not resolve is not reached under another name either.
		ips, err := resolve(ctx, strings.ToLower(cmp.Or(h, "0.0.0.0")))
		if err == nil && (slices.Contains(ips, ip) || slices.ContainsFunc(ips, thisMachine) && thisMachine(ip)) {
			return true
		}
	}
	return false
}

// thisMachine reports whether an address is one of the machine's own.
func thisMachine(ip netip.Addr) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == ip.WithZone("")
	})
}

// embedded is the IPv4 address that an IPv6 address of a translator carries:
// NAT64 (RFC 6052), 6to4, IPv4-compatible and IPv4-translated ones. Mapped ones
// are no longer there: resolve has unmapped them.
func embedded(ip netip.Addr) (netip.Addr, bool) {
	if !ip.Is6() {
		return netip.Addr{}, false
	}
	b := ip.As16()
	four := func(from int) (netip.Addr, bool) { return netip.AddrFrom4([4]byte(b[from : from+4])), true }
	for _, prefix := range []string{"64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"} {
		if netip.MustParsePrefix(prefix).Contains(ip) && !ip.IsLoopback() && !ip.IsUnspecified() {
			return four(12)
		}
	}
	if netip.MustParsePrefix("2002::/16").Contains(ip) {
		return four(2)
	}
	return netip.Addr{}, false
}

var errMetadata = refusedURL("link-local, multicast and metadata addresses are refused unless this host's configuration allows them")

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
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
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
