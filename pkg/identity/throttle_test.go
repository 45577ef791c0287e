package identity

import "testing"

func TestOneNetworkIsOneClient(t *testing.T) {
	for client, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "": "client ", "@": "client @",
	} {
		if got := network(client); got != want {
			t.Errorf("%q: %q, want %q", client, got, want)
		}
	}
}
