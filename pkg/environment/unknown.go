package environment

import (
	"regexp"
	"slices"
	"strings"
)

// known lists every BERTH_ variable that a program or a script of Berth reads.
// One environment often serves several programs, so each knows those of all.
func known() []string {
	return []string{
		// The control plane's daemons; pkg/config.
		"BERTH_DATABASE_URL", "BERTH_DATABASE_URL_FILE", "BERTH_ADMIN_LISTEN", "BERTH_LOG_LEVEL", "BERTH_SHUTDOWN_WITHIN",
		"BERTH_LEASE_TTL", "BERTH_RENEW_EVERY", "BERTH_REQUEST_TIMEOUT", "BERTH_FENCE_MARGIN", "BERTH_KILL_MARGIN",
		"BERTH_REAP_GRACE", "BERTH_CLAIM_WITHIN", "BERTH_HOST_OFFLINE_AFTER", "BERTH_HEARTBEAT_EVERY", "BERTH_CANCEL_WITHIN",
		"BERTH_LOOP_PLACE_INTERVAL", "BERTH_LOOP_PLACE_DISABLED", "BERTH_LOOP_PROMOTE_INTERVAL", "BERTH_LOOP_PROMOTE_DISABLED",
		"BERTH_LOOP_GIVE_UP_INTERVAL", "BERTH_LOOP_GIVE_UP_DISABLED", "BERTH_LOOP_REAP_INTERVAL", "BERTH_LOOP_REAP_DISABLED",
		"BERTH_LOOP_SILENT_HOSTS_INTERVAL", "BERTH_LOOP_SILENT_HOSTS_DISABLED",
		"BERTH_LOOP_LOST_TASKS_INTERVAL", "BERTH_LOOP_LOST_TASKS_DISABLED", "BERTH_LOOP_GUESSES_INTERVAL", "BERTH_LOOP_GUESSES_DISABLED",
		"BERTH_MASTER_KEY_OLD", "BERTH_MASTER_KEY_OLD_FILE", "BERTH_SIGNING_KEY_MAX_AGE", "BERTH_ISSUERS_FILE",
		"BERTH_LISTEN", "BERTH_MASTER_KEY", "BERTH_MASTER_KEY_FILE", "BERTH_ADMIN_NAME", "BERTH_ADMIN_PASSWORD",
		"BERTH_ADMIN_PASSWORD_FILE", "BERTH_BLOB_DIR", "BERTH_BLOBS", "BERTH_BLOBS_ACCESS_KEY", "BERTH_BLOBS_ACCESS_KEY_FILE",
		"BERTH_BLOBS_SECRET_KEY", "BERTH_BLOBS_SECRET_KEY_FILE", "BERTH_LOOP_INPUTS_INTERVAL", "BERTH_LOOP_INPUTS_DISABLED",
		"BERTH_LOOP_BLOBS_INTERVAL", "BERTH_LOOP_BLOBS_DISABLED", "BERTH_ORPHANS_AFTER", "BERTH_WORKERS", "BERTH_APPROVE_PLUGINS", "BERTH_TRUSTED_PROXIES",
		"BERTH_CORS_ORIGINS", "BERTH_SERVER_NAMES", "BERTH_PRINCIPAL_RATE", "BERTH_ADDRESS_RATE", "BERTH_MAX_STREAMS", "BERTH_MAX_CONNECTIONS",
		"BERTH_TLS_CERT_FILE", "BERTH_TLS_KEY_FILE", "BERTH_AGENT_CLIENT_CA_FILE",
		// The Host Agent; cmd/hostagent.
		"BERTH_SERVER", "BERTH_STATE_DIR", "BERTH_STATE_ROOT", "BERTH_ENROLMENT_DIR", "BERTH_HOST_NAME", "BERTH_ENROLMENT_TOKEN", "BERTH_ENROLMENT_TOKEN_FILE",
		"BERTH_PROCESS_SLOTS", "BERTH_BROWSER_CONTEXTS", "BERTH_CHROMIUM_PATH", "BERTH_COMMANDS", "BERTH_LABELS",
		"BERTH_INPUT_CACHE_MIB", "BERTH_ALLOW_LOOPBACK", "BERTH_ALLOW_HOSTS", "BERTH_KEY_MAX_AGE",
		"BERTH_CA_FILE", "BERTH_CLIENT_CERT_FILE", "BERTH_CLIENT_KEY_FILE",
		// The command line; cmd/berth.
		"BERTH_URL", "BERTH_TOKEN", "BERTH_PASSWORD", "BERTH_CONFIG_DIR",
		// What runs inside a task inherits these; pkg/runtime.
		"BERTH_RUN_ID", "BERTH_RUN_MARK",
		// Building and testing.
		"BERTH_INSTALL", "BERTH_CI_TIMES", "BERTH_HARNESS",
	}
}

// Unknown lists the BERTH_ variables of environ that no program of Berth reads,
// sorted: most likely misspelt. Tests' own (BERTH_TEST_) are none of them, and
// neither are those that Kubernetes makes for a service of the name berth.
func Unknown(environ []string) []string {
	service := regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP))?(_(PROTO|PORT|ADDR))?$`)
	names := known()
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "BERTH_") || strings.HasPrefix(name, "BERTH_TEST_") || service.MatchString(name) {
			continue
		}
		if !slices.Contains(names, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}
