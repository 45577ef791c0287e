package hostagent

import "github.com/prometheus/client_golang/prometheus"

// Metrics tell how an agent does. A nil one tells nothing.
type Metrics struct {
	free, held, skew prometheus.Gauge
	fenced, unclean  prometheus.Counter
}

// NewMetrics registers the agent's metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	return &Metrics{
		free:    gauge("berth_hostagent_state_free_bytes", "Room in the state directory; no attempts are taken when there is too little."),
		held:    gauge("berth_hostagent_held_attempts", "Attempts that the agent holds: claimed, running, or being reported."),
		skew:    gauge("berth_hostagent_clock_skew_seconds", "The server's clock less this host's, as measured at the last access token."),
		fenced:  counter("berth_hostagent_fenced_total", "Attempts that were killed because no renewal succeeded in time."),
		unclean: counter("berth_hostagent_unclean_total", "Runs after which a device was not given back in time."),
	}
}

func (m *Metrics) room(bytes int64) {
	if m != nil {
		m.free.Set(float64(bytes))
	}
}

func (m *Metrics) holding(n int) {
	if m != nil {
		m.held.Set(float64(n))
	}
}

func (m *Metrics) clock(seconds float64) {
	if m != nil {
		m.skew.Set(seconds)
	}
}

func (m *Metrics) fence() {
	if m != nil {
		m.fenced.Inc()
	}
}

func (m *Metrics) leftUnclean() {
	if m != nil {
		m.unclean.Inc()
	}
}
