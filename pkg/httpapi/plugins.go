package httpapi

import (
	"context"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/store"
)

// ListPlugins answers GET /plugins, without schemas.
func (s *Server) ListPlugins(ctx context.Context, in ListPluginsRequestObject) (ListPluginsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, validPluginCursor)
	if err != nil {
		return nil, err
	}
	plugins, next, err := s.cfg.Store.ListPlugins(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListPlugins200JSONResponse{Plugins: make([]Plugin, 0, len(plugins)), NextPageToken: pageToken(ctx, next)}
	for _, p := range plugins {
		p.Schema = nil
		out.Plugins = append(out.Plugins, pluginOf(p))
	}
	return out, nil
}

// GetPlugin answers GET /plugins/{name}.
func (s *Server) GetPlugin(ctx context.Context, in GetPluginRequestObject) (GetPluginResponseObject, error) {
	versions, err := s.cfg.Store.PluginVersions(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		return nil, berth.ErrNotFound
	}
	out := GetPlugin200JSONResponse{Name: in.Name, Versions: make([]Plugin, 0, len(versions))}
	for _, p := range versions {
		out.Versions = append(out.Versions, pluginOf(p))
	}
	return out, nil
}

// EnablePlugin answers POST /plugins/{name}/{version}/enable.
func (s *Server) EnablePlugin(ctx context.Context, in EnablePluginRequestObject) (EnablePluginResponseObject, error) {
	p, err := s.setPluginEnabled(ctx, in.Name, in.Version, true)
	return EnablePlugin200JSONResponse(p), err
}

// DisablePlugin answers POST /plugins/{name}/{version}/disable.
func (s *Server) DisablePlugin(ctx context.Context, in DisablePluginRequestObject) (DisablePluginResponseObject, error) {
	p, err := s.setPluginEnabled(ctx, in.Name, in.Version, false)
	return DisablePlugin200JSONResponse(p), err
}

// setPluginEnabled answers without the schema, as a list does.
func (s *Server) setPluginEnabled(ctx context.Context, name, version string, enabled bool) (Plugin, error) {
	p, err := s.cfg.Store.ChangePlugin(ctx, store.ChangePluginParams{
		Actor: actorOf(ctx), Plugin: berth.PluginVersion{Name: name, Version: version}, Change: berth.PluginChange{Enabled: &enabled},
	})
	if err != nil {
		return Plugin{}, err
	}
	p.Schema = nil
	return pluginOf(p), nil
}

// pluginNames lists the first names of enabled plugins there are.
func (s *Server) pluginNames(ctx context.Context) (names []string, more bool, err error) {
	plugins, next, err := s.cfg.Store.ListPlugins(ctx, store.Page{Size: 200})
	if err != nil {
		return nil, false, err
	}
	for _, p := range plugins {
		if p.Enabled && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	if len(names) > maxNamed {
		return names[:maxNamed], true, nil
	}
	return names, next != "", nil
}

func validPluginCursor(c string) bool {
	name, version, ok := strings.Cut(c, "@")
	return ok && berth.ValidName(name) && eligibility.ValidVersion(version)
}

func pluginOf(p berth.Plugin) Plugin {
	return Plugin{
		Name: p.Name, Version: p.Version, Enabled: p.Enabled, Description: p.Description,
		CreatedAt: p.CreatedAt.UTC(), Requires: p.Requires, Schema: p.Schema,
	}
}
