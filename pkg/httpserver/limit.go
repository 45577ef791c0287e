package httpserver

import (
	"math"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/pkg/berth"
)

// Limits of what one caller may ask of one process. 0 is no limit.
type Limits struct {
	// PrincipalRate and AddressRate are requests a second; four seconds' worth
	// may come at once.
	PrincipalRate, AddressRate int
	// Streams that a principal may have open at a time: waits, followed logs,
	// downloads. Each waiting one costs a read of the database a second.
	Streams int
}

const (
	burstSeconds = 4
	// maxKeys bounds a table of callers; what was not seen for a while makes room.
	maxKeys = 1 << 16
)

// Rate allows each key so many events a second. Its methods may be called by
// several goroutines.
type Rate struct {
	limit rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// NewRate makes one; perSecond 0 allows everything.
func NewRate(perSecond int) *Rate {
	return &Rate{limit: rate.Limit(perSecond), burst: perSecond * burstSeconds, buckets: map[string]*rate.Limiter{}}
}

// Take counts an event of a key at a time. The error is a *berth.TooManyError
// that says when the next will be allowed.
func (r *Rate) Take(key string, now time.Time) error {
	if r.burst == 0 {
		return nil
	}
	r.mu.Lock()
	bucket := r.buckets[key]
	if bucket == nil {
		r.makeRoom(now)
		bucket = rate.NewLimiter(r.limit, r.burst)
		r.buckets[key] = bucket
	}
	r.mu.Unlock()
	reservation := bucket.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	reservation.CancelAt(now)
	return &berth.TooManyError{RetryAfter: max(wait, time.Duration(math.Ceil(wait.Seconds()))*time.Second)}
}

// makeRoom forgets full buckets, which allow what a fresh one does; where none is
// full, all: rather a limit that begins anew than a table without end. r.mu is
// held.
func (r *Rate) makeRoom(now time.Time) {
	if len(r.buckets) < maxKeys {
		return
	}
	for key, bucket := range r.buckets {
		if bucket.TokensAt(now) >= float64(r.burst) {
			delete(r.buckets, key)
		}
	}
	if len(r.buckets) >= maxKeys {
		clear(r.buckets)
	}
}

// ByAddress limits requests by the network that they come from
// ([berth.ClientNetwork]).
func ByAddress(perSecond int) echo.MiddlewareFunc {
	limit := NewRate(perSecond)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			network, _ := berth.ClientNetwork(c.RealIP())
			if err := limit.Take(network, time.Now()); err != nil {
				return err
			}
			return next(c)
		}
	}
}

// ByCaller limits requests by what key says of them; "" is not limited.
func ByCaller(perSecond int, key func(echo.Context) string) echo.MiddlewareFunc {
	limit := NewRate(perSecond)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if k := key(c); k != "" {
				if err := limit.Take(k, time.Now()); err != nil {
					return err
				}
			}
			return next(c)
		}
	}
}

// AtOnce lets each key have so many requests open at a time, more are a
// *berth.TooManyError; 0 is no limit. "" is not limited.
func AtOnce(most int, key func(echo.Context) string) echo.MiddlewareFunc {
	var mu sync.Mutex
	open := map[string]int{}
	take := func(k string) bool {
		mu.Lock()
		defer mu.Unlock()
		if open[k] >= most {
			return false
		}
		open[k]++
		return true
	}
	release := func(k string) {
		mu.Lock()
		defer mu.Unlock()
		if open[k]--; open[k] == 0 {
			delete(open, k)
		}
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			k := key(c)
			if most == 0 || k == "" {
				return next(c)
			}
			if !take(k) {
				return &berth.TooManyError{RetryAfter: time.Second}
			}
			defer release(k)
			return next(c)
		}
	}
}
