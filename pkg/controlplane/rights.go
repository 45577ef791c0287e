package controlplane

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
)

// warnOfRights is a gate that says once, when the database can be used, that this
// process has more rights on it than it needs.
func warnOfRights(gate daemon.Gate, url redact.String, log *zap.Logger) daemon.Gate {
	var mu sync.Mutex
	asked := false
	return func(ctx context.Context) string {
		code := gate(ctx)
		mu.Lock()
		defer mu.Unlock()
		if code != "" || asked {
			return code
		}
		role, err := schema.Overpowered(ctx, url.Reveal())
		if err != nil {
			return code // it is asked again
		}
		asked = true
		if role != "" {
			log.Warn("this daemon may change tables and audit rows, because its database role owns them or is a superuser: "+
				"run `berth migrate grants --role-password-file FILE` as the owner, and put that role into BERTH_DATABASE_URL",
				zap.String("role", role), zap.String("wanted", schema.RuntimeRole))
		}
		return code
	}
}
