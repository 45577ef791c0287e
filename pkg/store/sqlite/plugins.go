package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// RegisterPlugins implements store.Fleet.
func (s *Store) RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error {
	return s.write(ctx, "RegisterPlugins", func(t *tx) error {
		for _, p := range plugins {
			if err := registerPlugin(t, actor, p, berth.Plugin.Registered); err != nil {
				return err
			}
		}
		return nil
	})
}

// registerPlugin adds a version that is not there, or writes what change makes of
// the one that is.
func registerPlugin(t *tx, actor berth.Actor, p berth.Plugin, change func(known, p berth.Plugin) (berth.Plugin, bool)) error {
	known, ok, err := loadPlugin(t, p.PluginVersion)
	if err != nil {
		return err
	}
	if !ok {
		p.Revision, p.DecidedAt = 1, t.now
		if p.Pending {
			p.DecidedAt = time.Time{}
		}
		err = t.execOne(`INSERT INTO plugins (name, version, enabled, pending, schema, result_schema, requires, description, created_at, decided_at)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
			p.Name, p.Version, p.Enabled, p.Pending, null(string(p.Schema)), null(string(p.ResultSchema)), p.Requires, p.Description,
			micros(t.now), micros(p.DecidedAt))
	} else {
		if p, ok = change(known, p); !ok {
			return nil
		}
		if !p.Pending && p.DecidedAt.IsZero() {
			p.DecidedAt = t.now
		}
		err = t.execOne(`UPDATE plugins SET enabled = ?3, pending = ?4, schema = ?5, result_schema = ?6, requires = ?7, description = ?8, revision = ?9,
			decided_at = ?10 WHERE name = ?1 AND version = ?2`,
			p.Name, p.Version, p.Enabled, p.Pending, null(string(p.Schema)), null(string(p.ResultSchema)), p.Requires, p.Description, p.Revision,
			micros(p.DecidedAt))
	}
	if err != nil {
		return err
	}
	if p.Enabled {
		if err := hintPools(t); err != nil {
			return err
		}
	}
	return auditChange(t, actor, berth.AuditPluginRegistered, "plugin", p.Name+"@"+p.Version, "", berth.PluginFacts(p))
}

// hintPools tells every pool that there may be work to place.
func hintPools(t *tx) error {
	ids, err := queryAll(t, scanText, "SELECT id FROM pools")
	for _, id := range ids {
		hintOf(t, store.HintWork, id)
	}
	return err
}

const pluginSelect = `SELECT name, version, enabled, pending, deprecated, schema, result_schema, requires, description, defaults, note, revision,
	created_at, decided_at FROM plugins`

func scanPlugin(r row) (p berth.Plugin, err error) {
	var schema, result string
	err = r.Scan(&p.Name, &p.Version, &p.Enabled, &p.Pending, &p.Deprecated, opt(&schema), opt(&result), &p.Requires, &p.Description,
		fromJSON(&p.Defaults), &p.Note, &p.Revision, at(&p.CreatedAt), at(&p.DecidedAt))
	if schema != "" {
		p.Schema = []byte(schema)
	}
	if result != "" {
		p.ResultSchema = []byte(result)
	}
	return p, err
}

func loadPlugin(t *tx, v berth.PluginVersion) (berth.Plugin, bool, error) {
	return queryOne(t, scanPlugin, pluginSelect+" WHERE name = ?1 AND version = ?2", v.Name, v.Version)
}

// ChangePlugin implements store.Operators.
func (s *Store) ChangePlugin(ctx context.Context, p store.ChangePluginParams) (next berth.Plugin, err error) {
	err = s.write(ctx, "ChangePlugin", func(t *tx) error {
		target := p.Plugin.Name + "@" + p.Plugin.Version
		old, ok, err := loadPlugin(t, p.Plugin)
		if err == nil && !ok {
			err = notFound(fmt.Sprintf("plugin %s", target))
		}
		if err != nil {
			return err
		}
		if next, err = old.Changed(p.Change); err != nil || next.Revision == old.Revision {
			return err
		}
		if next.State() != old.State() {
			next.DecidedAt = t.now
		}
		if err := t.execOne(`UPDATE plugins SET enabled = ?3, pending = ?4, deprecated = ?5, defaults = ?6, note = ?7, revision = ?8, decided_at = ?9
			WHERE name = ?1 AND version = ?2`, next.Name, next.Version, next.Enabled, next.Pending, next.Deprecated, jsonText(next.Defaults),
			next.Note, next.Revision, micros(next.DecidedAt)); err != nil {
			return err
		}
		if next.Enabled && !old.Enabled {
			if err := hintPools(t); err != nil {
				return err
			}
		}
		return auditChange(t, p.Actor, next.ChangeAction(old), "plugin", target, berth.PluginChangeFacts(old), berth.PluginChangeFacts(next))
	})
	if err != nil {
		return berth.Plugin{}, err
	}
	return next, nil
}

// ListPlugins implements store.Fleet.
func (s *Store) ListPlugins(ctx context.Context, p store.Page) (plugins []berth.Plugin, next string, err error) {
	name, version := p.After, ""
	if i := strings.LastIndexByte(p.After, '@'); i >= 0 {
		name, version = p.After[:i], p.After[i+1:]
	}
	err = s.read(ctx, "ListPlugins", func(t *tx) error {
		plugins, err = queryAll(t, scanPlugin, pluginSelect+" WHERE (name, version) > (?1, ?2) ORDER BY name, version LIMIT ?3",
			name, version, p.Limit()+1)
		return err
	})
	plugins, next = page(plugins, p.Limit(), func(p berth.Plugin) string { return p.Name + "@" + p.Version })
	return plugins, next, err
}

// PluginVersions implements store.Fleet.
func (s *Store) PluginVersions(ctx context.Context, name string) (plugins []berth.Plugin, err error) {
	err = s.read(ctx, "PluginVersions", func(t *tx) error {
		plugins, err = queryAll(t, scanPlugin, pluginSelect+" WHERE name = ?1 ORDER BY version", name)
		return err
	})
	return plugins, err
}
