package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// LoopMetrics count the rounds of all loops of a process. A nil one counts
// nothing.
type LoopMetrics struct {
	rounds  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// NewLoopMetrics registers berth_loop_rounds_total{loop,result} (result: ok,
// error, panic, gated) and berth_loop_seconds{loop} with r.
func NewLoopMetrics(r prometheus.Registerer) *LoopMetrics {
	m := &LoopMetrics{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_loop_rounds_total", Help: "Rounds of each loop by result; gated: none was run because the schema or the database would not do.",
		}, []string{"loop", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_loop_seconds", Help: "Length of the rounds of each loop.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"loop"}),
	}
	r.MustRegister(m.rounds, m.seconds)
	return m
}

func (m *LoopMetrics) record(loop, result string, took time.Duration) {
	if m == nil {
		return
	}
	m.rounds.WithLabelValues(loop, result).Inc()
	if result != resultGated {
		m.seconds.WithLabelValues(loop).Observe(took.Seconds())
	}
}

// NewRegistry makes a registry with the metrics of the Go process in it.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
