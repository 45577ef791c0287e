package hostagent

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time since some fixed moment and keeps running while the
// machine is suspended, so that a lease cannot be slept through.
type Clock func() time.Duration

// BootClock is CLOCK_BOOTTIME. Go's own monotonic clock stands still during
// suspend, so neither time.Now nor timers can measure leases.
func BootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("hostagent: no CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
