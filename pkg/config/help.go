package config

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/scheduler"
)

// defaults are those that no struct tag holds, by the variable, for the help.
func defaults(adminListen string) map[string]string {
	t := berth.DefaultTimings()
	all := map[string]string{
		"BERTH_LOG_LEVEL": defaultLogLevel, "BERTH_LISTEN": DefaultListen, "BERTH_ADMIN_NAME": DefaultAdminName, "BERTH_ADMIN_LISTEN": adminListen,
	}
	for name, d := range map[string]time.Duration{
		"BERTH_SHUTDOWN_WITHIN": defaultShutdownWithin,
		"BERTH_LEASE_TTL":       t.LeaseTTL, "BERTH_RENEW_EVERY": t.RenewEvery, "BERTH_REQUEST_TIMEOUT": t.RequestTimeout,
		"BERTH_FENCE_MARGIN": t.FenceMargin, "BERTH_KILL_MARGIN": t.KillMargin, "BERTH_REAP_GRACE": t.ReapGrace,
		"BERTH_CLAIM_WITHIN": t.ClaimWithin, "BERTH_HOST_OFFLINE_AFTER": t.HostOfflineAfter,
		"BERTH_HEARTBEAT_EVERY": t.HeartbeatEvery, "BERTH_CANCEL_WITHIN": t.CancelWithin,
		prefixPlace + "_INTERVAL": scheduler.DefaultPlaceInterval, prefixPromote + "_INTERVAL": scheduler.DefaultPromoteInterval,
		prefixGive + "_INTERVAL": scheduler.DefaultGiveUpInterval, prefixSchedules + "_INTERVAL": scheduler.DefaultSchedulesInterval, prefixReap + "_INTERVAL": leasekeeper.DefaultReapInterval,
		prefixSilent + "_INTERVAL": leasekeeper.DefaultHostsInterval,
		prefixInputs + "_INTERVAL": leasekeeper.DefaultInputsInterval, prefixBlobs + "_INTERVAL": leasekeeper.DefaultBlobsInterval,
		"BERTH_ORPHANS_AFTER": leasekeeper.DefaultOrphansAfter,
	} {
		all[name] = fmt.Sprint(d)
	}
	return all
}
