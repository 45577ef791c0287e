// Package runtime runs work on the devices of one machine: it composes drivers
// (kinds of devices) and plugins (kinds of work), and keeps nothing but what it
// needs to kill leftovers of a crash.
//
// The words:
//
//   - A [Driver] gives devices of one kind: it discovers and probes them, opens
//     a [Session] on one of them, and returns a device to a pristine state.
//   - A [Session] is the exclusive use of a device. What can be done with it is
//     told by the optional interfaces it implements: [Screen], [Input],
//     [Browser], [Commander].
//   - A [Plugin] does one named, versioned kind of work with one session.
//   - A [Runtime] runs a plugin on a device, one run at a time a device.
//
// Promises that callers such as the Host Agent build on:
//
//   - [Runtime.Run] returns only when the work is dead: processes killed,
//     pages and browser contexts closed. Cancelling its context kills the work.
//     What does not die by RunRequest.StopWithin makes the device unclean: it
//     refuses runs until [Runtime.Clean] finds that nothing of it is left.
//   - Work that an earlier process left behind (it was killed with SIGKILL) is
//     found and killed by package builtin's New, and by [Reap], before anything else runs.
//   - No payload, secret, screenshot, UI tree or typed text is in an error, a
//     reason, a message or a log line of this package.
//
// It knows neither tasks nor leases, and imports no store, scheduler, identity
// or agent package.
package runtime
