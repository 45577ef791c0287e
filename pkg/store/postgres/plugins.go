package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// RegisterPlugins is documented at store.Fleet.
func (s *Store) RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error {
	return s.write(ctx, "RegisterPlugins", func(t *tx) error { return t.registerPlugins(actor, plugins, berth.Plugin.Registered) })
}

// registerPlugins adds versions that are not there and writes what change makes of
// those that are, ascending, so that two do not wait for each other crosswise.
func (t *tx) registerPlugins(actor berth.Actor, plugins []berth.Plugin, change func(known, p berth.Plugin) (berth.Plugin, bool)) error {
	plugins = inOrder(plugins)
	if len(plugins) == 0 {
		return nil
	}
	known, err := t.pluginsNamed(plugins)
	if err != nil {
		return err
	}
	var added, changed []berth.Plugin
	for _, p := range plugins {
		if k, ok := known[p.PluginVersion]; !ok {
			added = append(added, p)
		} else if next, ok := change(k, p); ok {
			changed = append(changed, next)
		}
	}
	if len(added)+len(changed) == 0 {
		return nil
	}
	if err := t.addPlugins(added); err != nil {
		return err
	}
	if err := t.fillPlugins(changed); err != nil {
		return err
	}
	now, err := t.now()
	if err != nil {
		return err
	}
	return t.auditEvents(mapped(slices.Concat(added, changed), func(p berth.Plugin) berth.AuditEvent {
		return berth.AuditEvent{
			At: now, Actor: actor, Action: berth.AuditPluginRegistered, TargetKind: "plugin", TargetID: p.Name + "@" + p.Version,
			After: berth.PluginFacts(p),
		}
	}))
}

// inOrder is plugins by name and version, each once.
func inOrder(plugins []berth.Plugin) []berth.Plugin {
	plugins = slices.Clone(plugins)
	slices.SortStableFunc(plugins, func(a, b berth.Plugin) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Version, b.Version)
	})
	return slices.CompactFunc(plugins, func(a, b berth.Plugin) bool { return a.PluginVersion == b.PluginVersion })
}

func namesOf(plugins []berth.Plugin) []string {
	return mapped(plugins, func(p berth.Plugin) string { return p.Name })
}

func versionsOf(plugins []berth.Plugin) []string {
	return mapped(plugins, func(p berth.Plugin) string { return p.Version })
}

// pluginsNamed reads what is known of versions.
func (t *tx) pluginsNamed(plugins []berth.Plugin) (map[berth.PluginVersion]berth.Plugin, error) {
	rows, err := collect(t, scanPlugin, pluginColumns+`
WHERE (name, version) IN (SELECT e.name, e.version FROM unnest($1::text[], $2::text[]) AS e (name, version))`, namesOf(plugins), versionsOf(plugins))
	known := make(map[berth.PluginVersion]berth.Plugin, len(rows))
	for _, p := range rows {
		known[p.PluginVersion] = p
	}
	return known, err
}

// addPlugins starts over when somebody else adds one of them at the same time.
func (t *tx) addPlugins(plugins []berth.Plugin) error {
	if len(plugins) == 0 {
		return nil
	}
	n, err := t.exec(`
INSERT INTO plugins (name, version, enabled, pending, schema, result_schema, description, requires, created_at, decided_at)
SELECT e.name, e.version, e.enabled, e.pending, e.schema::json, e.result_schema::json, e.description, e.requires, n.now,
       CASE WHEN e.pending THEN NULL ELSE n.now END
FROM (SELECT berth_now() AS now OFFSET 0) n, unnest($1::text[], $2::text[], $3::boolean[], $4::boolean[], $5::text[], $6::text[], $7::text[], $8::text[])
     AS e (name, version, enabled, pending, schema, result_schema, description, requires)
ORDER BY e.name COLLATE "C", e.version COLLATE "C" ON CONFLICT DO NOTHING`, manifestColumns(plugins)...)
	if err == nil && int(n) < len(plugins) {
		err = errStartOver
	}
	return err
}

// fillPlugins writes what Plugin.Report and Plugin.Registered made of versions, and
// starts over when one of them has changed since it was read.
func (t *tx) fillPlugins(plugins []berth.Plugin) error {
	if len(plugins) == 0 {
		return nil
	}
	n, err := t.exec(`
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::boolean[], $5::text[], $6::text[], $7::text[], $8::text[], $9::integer[])
    AS e (name, version, enabled, pending, schema, result_schema, description, requires, revision)
), k AS MATERIALIZED (
    SELECT p.name, p.version FROM plugins p JOIN e ON e.name = p.name AND e.version = p.version AND e.revision = p.revision + 1
    ORDER BY p.name COLLATE "C", p.version COLLATE "C"
    FOR NO KEY UPDATE OF p
)
UPDATE plugins p SET enabled = e.enabled, pending = e.pending, schema = e.schema::json, result_schema = e.result_schema::json,
       description = e.description, requires = e.requires, revision = e.revision,
       decided_at = CASE WHEN e.pending THEN NULL ELSE COALESCE(p.decided_at, berth_now()) END
FROM k JOIN e ON e.name = k.name AND e.version = k.version
WHERE p.name = k.name AND p.version = k.version`,
		append(manifestColumns(plugins), mapped(plugins, func(p berth.Plugin) int32 { return int32(p.Revision) }))...)
	if err == nil && int(n) < len(plugins) {
		err = errStartOver
	}
	return err
}

func manifestColumns(plugins []berth.Plugin) []any {
	return []any{
		namesOf(plugins), versionsOf(plugins),
		mapped(plugins, func(p berth.Plugin) bool { return p.Enabled }),
		mapped(plugins, func(p berth.Plugin) bool { return p.Pending }),
		mapped(plugins, func(p berth.Plugin) pgtype.Text { return textOrNull(cleanJSON(p.Schema)) }),
		mapped(plugins, func(p berth.Plugin) pgtype.Text { return textOrNull(cleanJSON(p.ResultSchema)) }),
		mapped(plugins, func(p berth.Plugin) string { return clean(p.Description) }),
		mapped(plugins, func(p berth.Plugin) string { return clean(p.Requires) }),
	}
}

const pluginColumns = `
SELECT name, version, enabled, pending, deprecated, schema, result_schema, requires, description, defaults, note, revision, created_at, decided_at
FROM plugins`

func scanPlugin(row pgx.CollectableRow) (p berth.Plugin, err error) {
	return p, row.Scan(&p.Name, &p.Version, &p.Enabled, &p.Pending, &p.Deprecated, &p.Schema, &p.ResultSchema, &p.Requires, &p.Description,
		&p.Defaults, &p.Note, &p.Revision, &p.CreatedAt, instant(&p.DecidedAt))
}

// ChangePlugin is documented at store.Operators.
func (s *Store) ChangePlugin(ctx context.Context, p store.ChangePluginParams) (next berth.Plugin, err error) {
	err = s.write(ctx, "ChangePlugin", func(t *tx) error {
		name, version := clean(p.Plugin.Name), clean(p.Plugin.Version)
		old, err := found(t, fmt.Sprintf("plugin %s@%s", name, version), scanPlugin,
			pluginColumns+` WHERE name = $1 AND version = $2 FOR NO KEY UPDATE`, name, version)
		if err != nil {
			return err
		}
		if next, err = old.Changed(p.Change); err != nil || next.Revision == old.Revision {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if next.State() != old.State() {
			next.DecidedAt = now
		}
		if _, err := t.exec(`
UPDATE plugins SET enabled = $3, pending = $4, deprecated = $5, defaults = $6, note = $7, revision = $8, decided_at = $9
WHERE name = $1 AND version = $2`,
			name, version, next.Enabled, next.Pending, next.Deprecated, next.Defaults, clean(next.Note), next.Revision, orNull(next.DecidedAt)); err != nil {
			return err
		}
		if next.Enabled && !old.Enabled {
			if err := t.hintPools(); err != nil {
				return err
			}
		}
		return t.auditChange(p.Actor, now, next.ChangeAction(old), "plugin", name+"@"+version, berth.PluginChangeFacts(old), berth.PluginChangeFacts(next))
	})
	return only(next, err)
}

// hintPools tells every pool's scheduler that there may be something to place.
func (t *tx) hintPools() error {
	pools, err := collect(t, func(row pgx.CollectableRow) (id berth.PoolID, err error) { return id, row.Scan(&id) }, `SELECT id FROM pools`)
	for _, id := range pools {
		t.hint(store.HintWork, string(id))
	}
	return err
}

// ListPlugins is documented at store.Fleet.
func (s *Store) ListPlugins(ctx context.Context, page store.Page) (plugins []berth.Plugin, next string, err error) {
	name, version, _ := strings.Cut(page.After, "@")
	err = s.read(ctx, "ListPlugins", func(t *tx) error {
		plugins, err = collect(t, scanPlugin, pluginColumns+`
WHERE (name COLLATE "C", version COLLATE "C") > ($1, $2) ORDER BY name COLLATE "C", version COLLATE "C" LIMIT $3`,
			name, version, page.Limit()+1)
		return err
	})
	plugins, next = cut(plugins, page, func(p berth.Plugin) string { return p.Name + "@" + p.Version })
	return plugins, next, err
}

// PluginVersions is documented at store.Fleet.
func (s *Store) PluginVersions(ctx context.Context, name string) (plugins []berth.Plugin, err error) {
	err = s.read(ctx, "PluginVersions", func(t *tx) error {
		plugins, err = collect(t, scanPlugin, pluginColumns+` WHERE name = $1 ORDER BY version COLLATE "C"`, name)
		return err
	})
	return plugins, err
}
