package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

// newAuditCommand makes `berth audit`.
func newAuditCommand(c *cli) *cobra.Command {
	var p client.ListAuditParams
	var limit int
	var target, from, to string
	cmd := &cobra.Command{
		Use: "audit", Short: "Search the audit trail, newest first", Args: exactly(0, ""),
		Long: "Shows who did what to what, from where and with what, and what it changed: one row for each transition of a\n" +
			"task, each administrative act, and each read of an artifact, a log or an input. For operators.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if target != "" {
				var ok bool
				if p.TargetKind, p.Target, ok = strings.Cut(target, "/"); !ok {
					p.TargetKind, p.Target = target, ""
				}
			}
			var err error
			if p.From, err = c.moment(cmd, "--from", from); err != nil {
				return err
			}
			if p.To, err = c.moment(cmd, "--to", to); err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			none := "No audit rows pass these filters."
			if p.Actor != "" && !berth.ValidID(p.Actor) {
				none += " Where --actor is a user's name, only administrators find it; the id always does (-o json shows it)."
			}
			if p.TargetKind != "" && p.Target == "" {
				none += fmt.Sprintf(" --target %s asks for all of that kind; one thing is KIND/ID, such as host/lab-1.", printable(target))
			}
			if err := c.auditIDs(cmd.Context(), api, &p); err != nil {
				return err
			}
			events, next, err := pages(limit, func(size int, token string) ([]client.AuditEvent, string, error) {
				p.PageSize, p.PageToken = size, token
				l, err := api.ListAudit(cmd.Context(), p)
				return l.Events, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.AuditList{Events: events, NextPageToken: next})
			}
			rows := make([][]any, 0, len(events))
			for _, e := range events {
				rows = append(rows, []any{
					e.At.Local().Format("2006-01-02 15:04:05"), auditActor(e), e.Action, e.TargetKind + "/" + e.Target, clip(auditChange(e), 70), e.Client, e.RequestID,
				})
			}
			c.printTable([]any{"at", "actor", "action", "target", "change", "client", "request"}, rows, none)
			c.more(next, len(events))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.Actor, "actor", "", "by this user, host or daemon (id, or name)")
	f.StringVar(&p.Action, "action", "", "this action, such as host.drain, or all that begin alike, such as host.")
	f.StringVar(&target, "target", "", "on this target, such as host/lab-1 or KIND/ID, or on all of a KIND, such as pool")
	f.StringVar(&p.Host, "host", "", "that concern this host (id, or name)")
	f.StringVar(&p.Device, "device", "", "that concern this device (id, or name)")
	f.StringVar(&p.RequestID, "request", "", "of this request (id)")
	f.StringVar(&from, "from", "", "since this time (RFC 3339), or for so long, such as 2h")
	f.StringVar(&to, "to", "", "before this time (RFC 3339), or so long ago, such as 30m")
	f.IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	return cmd
}

// auditIDs puts ids in the place of names: rows hold ids alone.
func (c *cli) auditIDs(ctx context.Context, api *client.Client, p *client.ListAuditParams) (err error) {
	if p.Host, err = c.auditID(ctx, api, "host", p.Host); err != nil {
		return err
	}
	if p.Device, err = c.auditID(ctx, api, "device", p.Device); err != nil {
		return err
	}
	if p.Target, err = c.auditID(ctx, api, p.TargetKind, p.Target); err != nil {
		return err
	}
	for _, kind := range []string{"host", "user"} { // what is neither may be a daemon
		if id, err := c.auditID(ctx, api, kind, p.Actor); err == nil && p.Actor != "" {
			p.Actor = id
		}
	}
	return nil
}

// auditID is the id of what a name means. Ids, and names of what has no other id,
// stay what they are.
func (c *cli) auditID(ctx context.Context, api *client.Client, kind, name string) (string, error) {
	if id := strings.ToLower(strings.TrimSpace(name)); id == "" || berth.ValidID(id) {
		return id, nil
	}
	switch kind {
	case "host": // a revoked one, too
		all, err := allHosts(ctx, api)
		if err != nil {
			return "", err
		}
		h, err := only("host", name, slices.DeleteFunc(all, func(h client.Host) bool { return h.Name != name }), func(h client.Host) string { return h.ID })
		return h.ID, err
	case "device":
		d, err := c.device(ctx, api, name)
		return d.ID, err
	case "user":
		u, err := c.userNamed(ctx, api, name)
		return u.ID, err
	case "pool":
		all, _, err := pages(0, func(size int, token string) ([]client.Pool, string, error) {
			l, err := api.ListPools(ctx, client.ListPoolsParams{PageSize: size, PageToken: token})
			return l.Pools, l.NextPageToken, err
		})
		if err != nil {
			return "", err
		}
		p, err := only("pool", name, slices.DeleteFunc(all, func(p client.Pool) bool { return p.Name != name }), func(p client.Pool) string { return p.ID })
		return p.ID, err
	}
	return name, nil
}

// moment is a time that a flag says, or how long ago it was; zero for "".
func (c *cli) moment(cmd *cobra.Command, flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return c.now().Add(-ago).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%s %q is no time", flag, text), remedy: flag + " 2026-07-01T08:00:00Z, or " + flag + " 2h for two hours ago"}
	}
	return at.UTC(), nil
}

func auditActor(e client.AuditEvent) string {
	if e.ActorName != "" {
		return e.ActorName
	}
	return strings.TrimSuffix(e.ActorKind+"/"+e.Actor, "/")
}

// auditChange is what a row says of before and after, in a few words.
func auditChange(e client.AuditEvent) string {
	var words []string
	if e.To != "" {
		words = append(words, strings.TrimPrefix(e.From+" -> "+e.To, " -> "))
	}
	for _, name := range slices.Sorted(maps.Keys(e.After)) {
		if was := e.Before[name]; was != "" && was != e.After[name] {
			words = append(words, name+"="+was+" -> "+e.After[name])
		} else if was == "" {
			words = append(words, name+"="+e.After[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Before)) {
		if _, kept := e.After[name]; !kept {
			words = append(words, name+"="+e.Before[name]+" ->")
		}
	}
	if len(words) == 0 || e.Outcome != "" {
		if e.Outcome != e.To {
			words = append(words, e.Outcome)
		}
		if e.Reason != e.Outcome {
			words = append(words, e.Reason)
		}
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), ", ")
}
