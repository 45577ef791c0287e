package berth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/redact"
)

// Limits of secrets.
const (
	// MaxTaskSecrets bounds the secrets of one task.
	MaxTaskSecrets = 20
	// MinSecretLen bounds a secret's value in bytes: one that is shorter could not
	// be masked without masking half of every log.
	MinSecretLen = 3
	// MaxSecretLen bounds a secret's value in bytes.
	MaxSecretLen = 16 << 10
	// MaxSecretGrants bounds the grants of one secret.
	MaxSecretGrants = 100
)

// Secret is a named value that tasks may be given; the value is stored sealed
// and told to nobody but the host that runs such a task.
type Secret struct {
	Name        string
	Description string
	// Version counts the values, from 1.
	Version              int
	CreatedAt, UpdatedAt time.Time
	// Grants by kind and grantee, each once.
	Grants []SecretGrant
}

// CheckSecretValue judges a value at the path value; the fault does not repeat it.
func CheckSecretValue(value redact.String) error {
	text := value.Reveal()
	switch {
	case len(text) < MinSecretLen:
		return Invalid("value", "it is too short to be masked wherever it shows up", fmt.Sprintf("use at least %d bytes", MinSecretLen))
	case len(text) > MaxSecretLen:
		return Invalid("value", "it is too long", fmt.Sprintf("use at most %d bytes; larger things are inputs", MaxSecretLen))
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return Invalid("value", "it is no text without NUL", "encode it, for example as base64")
	}
	return nil
}

// GrantKind says who a grant is for.
type GrantKind string

// The kinds of grant.
const (
	GrantUser GrantKind = "user"
	GrantRole GrantKind = "role"
)

// CheckSecretDescription judges a description at the path description.
func CheckSecretDescription(s string) error {
	if !plain(s) {
		return Invalid("description", "the description has control characters", "write one line of text")
	}
	return nil
}

// SecretGrant lets a user's tasks, or those of everybody who has a role, name a
// secret.
type SecretGrant struct {
	Kind GrantKind
	// Grantee is a user's id or a role.
	Grantee string
}

// String is the grant in one word: role:submitter.
func (g SecretGrant) String() string { return string(g.Kind) + ":" + g.Grantee }

// GrantedTo reports whether the tasks of a user with these roles may name the
// secret. A role has what is granted to the roles that it includes.
func (s Secret) GrantedTo(user UserID, roles []Role) bool {
	implied := ImpliedRoles(roles)
	return slices.ContainsFunc(s.Grants, func(g SecretGrant) bool {
		switch g.Kind {
		case GrantUser:
			return user != "" && g.Grantee == string(user)
		case GrantRole:
			return slices.Contains(implied, Role(g.Grantee))
		}
		return false
	})
}

// ImpliedRoles are the roles of people that one of roles includes, least first.
func ImpliedRoles(roles []Role) []Role { return included(Roles(), roles) }

// GrantChange is what becomes of a secret's grants. The zero value leaves them.
type GrantChange struct {
	// Set replaces them all, unless it is nil.
	Set *[]SecretGrant
	// Add and Remove leave the others as they are, so that two people who change
	// them at once both succeed. What is in both is added.
	Add, Remove []SecretGrant
}

// Normalise sorts the lists and drops repeats, or names what is no grant at
// grants[i], add_grants[i] or remove_grants[i]. Whether a user is there it does not
// judge.
func (c GrantChange) Normalise() (GrantChange, error) {
	if c.Set != nil && len(c.Add)+len(c.Remove) > 0 {
		return c, Invalid("grants", "all grants are replaced, and some are added or removed", "send either grants, or add_grants and remove_grants")
	}
	var err error
	if c.Set != nil {
		var set []SecretGrant
		if set, err = normaliseGrants("grants", *c.Set); err == nil {
			c.Set = &set
		}
		return c, err
	}
	if c.Add, err = normaliseGrants("add_grants", c.Add); err != nil {
		return c, err
	}
	c.Remove, err = normaliseGrants("remove_grants", c.Remove)
	return c, err
}

// Of is what a normalised change makes of grants; nil: they stay as they are.
func (c GrantChange) Of(old []SecretGrant) (*[]SecretGrant, error) {
	if c.Set != nil || len(c.Add)+len(c.Remove) == 0 {
		return c.Set, nil
	}
	grants := slices.DeleteFunc(slices.Clone(old), func(g SecretGrant) bool { return slices.Contains(c.Remove, g) })
	grants, err := normaliseGrants("add_grants", append(grants, c.Add...))
	return &grants, err
}

// Granted are the grants that a normalised change names, in its order.
func (c GrantChange) Granted() []SecretGrant {
	if c.Set != nil {
		return *c.Set
	}
	return c.Add
}

// Unknown is the fault of granting to users that are not among known.
func (c GrantChange) Unknown(known []UserID) error {
	var f Faults
	path := "add_grants"
	if c.Set != nil {
		path = "grants"
	}
	for i, g := range c.Granted() {
		if g.Kind == GrantUser && !slices.Contains(known, UserID(g.Grantee)) {
			f.Add(fmt.Sprintf("%s[%d].user", path, i), "there is no such user", "`berth user list` shows the ids")
		}
	}
	return f.Err()
}

func normaliseGrants(path string, grants []SecretGrant) ([]SecretGrant, error) {
	var f Faults
	if len(grants) > MaxSecretGrants {
		f.Add(path, fmt.Sprintf("%d grants", len(grants)), fmt.Sprintf("use at most %d; grant it to a role", MaxSecretGrants))
		return nil, f.Err()
	}
	for i, g := range grants {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch g.Kind {
		case GrantUser:
			if !ValidID(g.Grantee) {
				f.Add(at+".user", "it is no user's id", "`berth user list` shows the ids")
			}
		case GrantRole:
			if !slices.Contains(Roles(), Role(g.Grantee)) {
				f.Add(at+".role", "it is no role of people", "use viewer, submitter, operator or admin")
			}
		default:
			f.Add(at, "it names neither a user nor a role", `write {"user": ID} or {"role": NAME}`)
		}
	}
	out := slices.Clone(grants)
	slices.SortFunc(out, func(a, b SecretGrant) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out), f.Err()
}

// GrantedUsers are the users that grants name, ascending.
func GrantedUsers(grants []SecretGrant) []UserID {
	var users []UserID
	for _, g := range grants {
		if g.Kind == GrantUser {
			users = append(users, UserID(g.Grantee))
		}
	}
	slices.Sort(users)
	return slices.Compact(users)
}

// ChangedSecret is old (the zero Secret: none) with a new value, description and
// grants, those that are given; a value is a new version.
func ChangedSecret(old Secret, name string, value bool, description *string, grants *[]SecretGrant, now time.Time) Secret {
	s := old
	s.Name, s.UpdatedAt = name, now
	if old.Version == 0 {
		s.CreatedAt = now
	}
	if value || old.Version == 0 {
		s.Version++
	}
	if description != nil {
		s.Description = *description
	}
	if grants != nil {
		s.Grants = *grants
		if len(s.Grants) == 0 {
			s.Grants = nil
		}
	}
	return s
}

// SecretChange is what an audit row says of a change from old to anew; the zero
// Secret stands for none. Both are "" when nothing changed. The value is in
// neither; a new one is a new version.
func SecretChange(old, anew Secret) (before, after Facts) {
	was, is := map[string]string{}, map[string]string{}
	if old.Version != anew.Version {
		if old.Version != 0 {
			was["version"] = strconv.Itoa(old.Version)
		}
		if anew.Version != 0 {
			is["version"] = strconv.Itoa(anew.Version)
		}
	}
	if old.Description != anew.Description && anew.Version != 0 {
		is["description"] = "changed" // a sentence of somebody's is no fact
	}
	for _, g := range old.Grants {
		if !slices.Contains(anew.Grants, g) {
			was["grant "+g.String()] = "yes"
		}
	}
	for _, g := range anew.Grants {
		if !slices.Contains(old.Grants, g) {
			is["grant "+g.String()] = "yes"
		}
	}
	return NewFacts(was), NewFacts(is)
}

// SecretNames that the tasks name, ascending, each once.
func SecretNames(tasks []NewTask) []string {
	var names []string
	for _, k := range tasks {
		names = append(names, k.Secrets...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// CheckSecrets is the fault of the tasks' secrets that are not among granted.
// One that does not exist and one that is not granted are not told apart.
func CheckSecrets(tasks []NewTask, granted []string) error {
	var f Faults
	for i, k := range tasks {
		for j, name := range k.Secrets {
			if !slices.Contains(granted, name) {
				f.Add(fmt.Sprintf("tasks[%d].secrets[%d]", i, j), "no such secret, or it is not granted to you",
					"`berth secret list` shows those that your tasks may name; an administrator grants them: berth secret grant SECRET --user USER")
			}
		}
	}
	return f.Err()
}

// checkSecretNames judges the form alone; the order stays, so that faults name
// the place where a secret stands.
func checkSecretNames(path string, names []string, f *Faults) {
	if len(names) > MaxTaskSecrets {
		f.Add(path, fmt.Sprintf("%d secrets", len(names)), fmt.Sprintf("use at most %d", MaxTaskSecrets))
		return
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !ValidName(name):
			f.Add(at, "it is not a secret's name", "use lower-case letters, digits and . _ -, at most 63")
		case slices.Contains(names[:i], name):
			f.Add(at, "it is named twice", "name each secret once")
		}
	}
}

// SortedSecrets is how a task keeps the names of its secrets; nil without any.
func SortedSecrets(names []string) []string { return sortedUnique(names) }
