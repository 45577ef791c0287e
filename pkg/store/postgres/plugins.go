package postgres

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// RegisterPlugins is documented at store.Fleet.
func (s *Store) RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error {
	return s.write(ctx, "RegisterPlugins", func(t *tx) error { return t.registerPlugins(actor, plugins, true) })
}

// registerPlugins adds versions that are not there, ascending, and with
// complete fills in those that were only reported.
func (t *tx) registerPlugins(actor berth.Actor, plugins []berth.Plugin, complete bool) error {
	if len(plugins) == 0 {
		return nil
	}
	plugins = slices.Clone(plugins)
	slices.SortStableFunc(plugins, func(a, b berth.Plugin) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Version, b.Version)
	})
	plugins = slices.CompactFunc(plugins, func(a, b berth.Plugin) bool { return a.PluginVersion == b.PluginVersion })
	columns := []any{
		mapped(plugins, func(p berth.Plugin) string { return p.Name }),
		mapped(plugins, func(p berth.Plugin) string { return p.Version }),
		mapped(plugins, func(p berth.Plugin) bool { return p.Enabled }),
		mapped(plugins, func(p berth.Plugin) pgtype.Text { return textOrNull(cleanJSON(p.Schema)) }),
		mapped(plugins, func(p berth.Plugin) string { return clean(p.Description) }),
		mapped(plugins, func(p berth.Plugin) string { return clean(p.Requires) }),
	}
	added, err := collect(t, scanPluginVersion, `
INSERT INTO plugins (name, version, enabled, schema, description, requires, created_at)
SELECT e.name, e.version, e.enabled, e.schema::json, e.description, e.requires, berth_now()
FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::text[]) AS e (name, version, enabled, schema, description, requires)
ON CONFLICT DO NOTHING RETURNING name, version`, columns...)
	if err != nil {
		return err
	}
	var completed []berth.PluginVersion
	if complete && len(added) < len(plugins) {
		if completed, err = t.completePlugins(columns); err != nil {
			return err
		}
	}
	if len(added)+len(completed) == 0 {
		return nil
	}
	now, err := t.now()
	if err != nil {
		return err
	}
	return t.auditEvents(mapped(slices.Concat(added, completed), func(v berth.PluginVersion) berth.AuditEvent {
		i := slices.IndexFunc(plugins, func(p berth.Plugin) bool { return p.PluginVersion == v })
		return berth.AuditEvent{
			At: now, Actor: actor, Action: berth.AuditPluginRegistered, TargetKind: "plugin", TargetID: v.Name + "@" + v.Version,
			After: berth.PluginFacts(plugins[i]),
		}
	}))
}

// completePlugins gives schema, requirement, description and Enabled to versions that hosts
// had reported before anybody registered them.
func (t *tx) completePlugins(columns []any) ([]berth.PluginVersion, error) {
	return collect(t, scanPluginVersion, `
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::text[]) AS e (name, version, enabled, schema, description, requires)
), bare AS MATERIALIZED (
    SELECT p.name, p.version FROM plugins p JOIN e ON e.name = p.name AND e.version = p.version
    WHERE NOT p.enabled AND p.schema IS NULL AND (e.enabled OR e.schema IS NOT NULL)
    ORDER BY p.name COLLATE "C", p.version COLLATE "C"
    FOR NO KEY UPDATE OF p
)
UPDATE plugins p SET enabled = e.enabled, schema = e.schema::json, description = e.description, requires = e.requires
FROM bare b JOIN e ON e.name = b.name AND e.version = b.version
WHERE p.name = b.name AND p.version = b.version AND NOT p.enabled AND p.schema IS NULL
RETURNING p.name, p.version`, columns...)
}

const pluginColumns = `SELECT name, version, enabled, schema, requires, description, created_at FROM plugins`

func scanPlugin(row pgx.CollectableRow) (p berth.Plugin, err error) {
	return p, row.Scan(&p.Name, &p.Version, &p.Enabled, &p.Schema, &p.Requires, &p.Description, &p.CreatedAt)
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
