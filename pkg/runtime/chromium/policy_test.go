package chromium

import (
	"net"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/pkg/runtime"
)

func TestPolicy(t *testing.T) {
	strict := Policy{}
	local := Policy{AllowLoopback: true, Deny: []string{"127.0.0.1:8080", "10.1.0.0/16", "denied.localhost"}}
	berth := Policy{AllowLoopback: true, ControlPlane: []string{"127.0.0.8:7700", "localhost:7701"}, Allow: []string{"shared.localhost"}}
	everywhere := Policy{AllowLoopback: true, ControlPlane: []string{"0.0.0.0:7714"}}
	allowing := Policy{Allow: []string{"169.254.10.0/24", "100.100.100.200", "127.0.0.1:9000"}}
	for _, c := range []struct {
		policy Policy
		url    string
		ok     bool
	}{
		{strict, "http://192.0.2.7/", true},
		{strict, "https://10.0.0.1:8443/x?y#z", true},
		{strict, "ftp://192.0.2.7/", false},
		{strict, "file:///etc/passwd", false},
		{strict, "javascript:alert(1)", false},
		{strict, "data:text/html,x", false},
		{strict, "chrome://settings", false},
		{strict, "about:blank", false},
		{strict, "http:///x", false},
		{strict, "http://127.0.0.1/", false},
		{strict, "http://localhost./", false},
		{strict, "http://x.localhost/", false},
		{strict, "http://[::1]/", false},
		{strict, "http://[::ffff:127.0.0.1]/", false},
		{strict, "http://0x7f.1/", false},
		{strict, "http://2130706433/", false},
		{strict, "http://017700000001/", false},
		{strict, "http://0.0.0.0/", false},
		{strict, "http://[::]/", false},
		{strict, "http://169.254.169.254/latest/meta-data/", false},
		{strict, "http://0xa9fea9fe/", false},
		{strict, "http://[fe80::1]/", false},
		{strict, "http://100.100.100.200/", false},
		{strict, "http://[fd00:ec2::254]/", false},
		{strict, "http://224.0.0.1/", false},
		{strict, "http://255.255.255.255/", false},
		{strict, "http://0.1.2.3/", false},
		{strict, "http://metadata.google.internal/computeMetadata/v1/", false},
		{strict, "http://METADATA.google.internal./", false},
		{strict, "http://169.254.169.254./", false},
		{strict, "http://0251.0376.0251.0376/", false},
		{strict, "http://2852039166/", false},
		{strict, "http://169.254.43518/", false},
		{strict, "http://user:password@169.254.169.254/", false},
		{strict, "http://192.0.2.7@169.254.169.254/", false},
		{strict, "http://[::ffff:169.254.169.254]/", false},
		{strict, "http://[::ffff:a9fe:a9fe]/", false},
		{strict, "http://[64:ff9b::a9fe:a9fe]/", false},
		{strict, "http://[64:ff9b:1::a9fe:a9fe]/", false},
		{strict, "http://[64:ff9b::7f00:1]/", false},
		{strict, "http://[64:ff9b::c000:207]/", true},
		{strict, "http://[2002:a9fe:a9fe::1]/", false},
		{strict, "http://[::a9fe:a9fe]/", false},
		{strict, "http://[::ffff:0:a9fe:a9fe]/", false},
		{strict, "http://[2001:db8::1]/", true},
		{local, "http://[64:ff9b::7f00:1]:8080/", false},
		{berth, "http://127.0.0.8:7700/api/v1/health", false},
		{berth, "http://0x7f.8:7700/", false},
		{berth, "http://[::ffff:127.0.0.8]:7700/", false},
		{berth, "http://[64:ff9b::7f00:8]:7700/", false},
		{berth, "http://127.0.0.8:7702/", true},
		{berth, "http://127.0.0.9:7700/", false}, // it may listen on every address
		{berth, "http://[::1]:7700/", false},
		{everywhere, "http://127.0.0.9:7714/", false},
		{everywhere, "http://127.0.0.9:7715/", true},
		{berth, "http://localhost:7701/", false},
		{berth, "http://127.0.0.1:7701/", false},
		{berth, "http://[::1]:7701/", false},
		{berth, "http://app.localhost:7701/", false},
		{berth, "http://shared.localhost:7701/", true},
		{local, "http://127.0.0.1:9090/", true},
		{local, "http://localhost:9090/", true},
		{local, "http://127.0.0.1:8080/", false},
		{local, "http://localhost:8080/", false},
		{local, "http://denied.localhost/", false},
		{local, "http://10.1.2.3/", false},
		{local, "http://10.2.2.3/", true},
		{local, "http://169.254.169.254/", false},
		{allowing, "http://169.254.10.9/", true},
		{allowing, "http://169.254.11.9/", false},
		{allowing, "http://100.100.100.200/", true},
		{allowing, "http://127.0.0.1:9000/", true},
		{allowing, "http://127.0.0.1:9001/", false},
	} {
		err := c.policy.check(t.Context(), c.url)
		if (err == nil) != c.ok {
			t.Errorf("%s with %+v: %v", c.url, c.policy, err)
		}
		if err != nil && runtime.CodeOf(err) != runtime.CodeURLRefused {
			t.Errorf("%s: code %s", c.url, runtime.CodeOf(err))
		}
	}
	if err := (Policy{Allow: []string{"10.0.0.0/x"}, Deny: []string{""}, ControlPlane: []string{"berth"}}).Validate(); err == nil {
		t.Error("a bad list is valid")
	}
}

func TestParseKey(t *testing.T) {
	for name, want := range map[string]key{
		"Enter":           {key: "Enter", code: "Enter", text: "\r", virtual: 13},
		"a":               {key: "a", code: "KeyA", text: "a", virtual: 65},
		"+":               {key: "+", text: "+"},
		"Shift++":         {key: "+", text: "+", modifiers: 8},
		"ü":               {key: "ü", text: "ü"},
		"Control+a":       {key: "a", code: "KeyA", virtual: 65, modifiers: 2, command: "selectAll"},
		"Control+Shift+7": {key: "7", code: "Digit7", virtual: 55, modifiers: 10},
		"Shift+Tab":       {key: "Tab", code: "Tab", text: "\t", virtual: 9, modifiers: 8},
	} {
		if got, err := parseKey(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "enter", "ab", "Ctrl+a", "Control+", "\n", "a+b"} {
		if got, err := parseKey(name); runtime.CodeOf(err) != runtime.CodeUnknownKey {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
}

// TestTheControlPlaneAtTheMachinesOtherAddresses: one that listens on all of them
// is told to the host by one alone.
func TestTheControlPlaneAtTheMachinesOtherAddresses(t *testing.T) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, control := range []string{"127.0.0.1:7700", "localhost:7700", ":7700"} {
		for _, a := range own {
			ip := netip.MustParsePrefix(a.String()).Addr()
			at := netip.AddrPortFrom(ip, 7700)
			p := Policy{AllowLoopback: true, ControlPlane: []string{control}}
			if err := p.check(t.Context(), "http://"+at.String()+"/"); err == nil {
				t.Errorf("the control plane at %s is open at %s", control, at)
			}
		}
	}
	far := Policy{ControlPlane: []string{"192.0.2.1:7700", ":7700", "0.0.0.0:7700"}}
	if err := far.check(t.Context(), "http://198.51.100.7:7700/"); err != nil {
		t.Errorf("another machine: %v", err)
	}
}
