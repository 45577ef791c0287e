package e2e

import (
	"net/http"

	"github.com/berth-dev/berth/pkg/client"
)

// lostBulkCases are the acts on many tasks.
func lostBulkCases() map[string]lostCase {
	return map[string]lostCase{
		"POST /api/v1/bulk-jobs":          lostStartBulk,
		"POST /api/v1/bulk-jobs/preview":  lostPreviewBulk,
		"POST /api/v1/bulk-jobs/:id/stop": lostStopBulk,
	}
}

// bulk is a spec that no other case's tasks pass.
func (w *lostWorld) bulk() client.BulkSpec {
	return client.BulkSpec{Act: client.BulkActCancel, Filter: client.BulkFilter{Tag: w.next("bulk")}}
}

func lostStartBulk(w *lostWorld) lostCall {
	c := w.admin(http.MethodPost, "/api/v1/bulk-jobs", w.bulk()).keyed()
	c.effect = "SELECT count(*) FROM bulk_jobs"
	return c
}

func lostPreviewBulk(w *lostWorld) lostCall {
	c := w.admin(http.MethodPost, "/api/v1/bulk-jobs/preview", w.bulk())
	c.effect, c.nothingStored = "SELECT count(*) FROM bulk_jobs", true
	return c
}

// lostStopBulk: the test's keepers leave jobs alone.
func lostStopBulk(w *lostWorld) lostCall {
	job, err := w.Client.StartBulkJob(w.t.Context(), w.bulk())
	w.must(job, err)
	c := w.admin(http.MethodPost, "/api/v1/bulk-jobs/"+job.ID+"/stop", nil)
	c.effect = acts(job.ID)
	return c
}
